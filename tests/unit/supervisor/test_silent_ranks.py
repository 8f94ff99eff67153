"""Ranks on a silent node: only the scheduler or the user can end them.

Supervisor, processes, connections and recorder are real; the agents are scripts that write down
their orders; ranks and scheduler are simulated.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.errors import RankroomError
from rankroom.record.cluster_file import (
    Allocation,
    ClusterInfo,
    ClusterPaths,
    Node,
    silent_words,
)
from rankroom.record.model import event_line
from rankroom.record.store import Store
from rankroom.supervisor import release
from rankroom.supervisor.debug_relay import DebugRelay
from rankroom.supervisor.processes import cluster_processes, hub
from rankroom.supervisor.processes.agent_process import AgentProcess
from rankroom.supervisor.processes.cluster_processes import SILENCE_TIMEOUT_S, Processes
from rankroom.supervisor.processes.load import Loads
from rankroom.supervisor.processes.restarts import Restarts
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.supervisor.rank_stacks import stacks
from rankroom.supervisor.recorder import Recorder
from rankroom.supervisor.requests import Requests
from rankroom.supervisor.supervisor import Supervisor
from rankroom.system.polling import poll_until
from record_makers import make_run

HOW = "was given up: its node c2 has failed"


class Server:
    """A server that only records what it is to send, and runs scheduled calls at `tick`."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, dict[str, Any]]] = []
        self._later: list[Callable[[], object]] = []

    def tell(self, peer: bytes, *buffers: bytes, **content: Any) -> None:
        self.told.append((peer, content))

    def call(self, call: Callable[[], object]) -> None:
        call()

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self._later.append(call)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            due, self._later = self._later, []
            for call in due:
                call()


class TwoNodes:
    """The supervisor of four ranks on two nodes, and the simulated nodes, ranks and scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = ClusterPaths("x")
        self.paths.make(4)
        nodes = (Node("c1", 2), Node("c2", 2))
        self.info = ClusterInfo("x", 4, "running", allocation=Allocation("7", nodes))
        self.over: Mapping[str, str] = {}  # by node, as the scheduler reports it
        self.server = Server()
        made = self.supervisor = Supervisor.__new__(Supervisor)
        made.info, made.paths, made.server = self.info, self.paths, self.server  # type: ignore[assignment]
        made.ready, made.changed, made.lost = {0, 1, 2, 3}, False, {}
        made.last_heartbeat = made.saved = 0.0
        made.children = self.children = Processes(self.paths, self.info, 0, lambda: None)
        made.restarts = Restarts(self.info, self.children, made.ready)
        made.connections = RankConnections(self.server, self.children.signal)  # type: ignore[arg-type]
        made.silent_nodes = SimpleNamespace(over=lambda silent: self.over)  # type: ignore[assignment]
        made.job_end = None
        self.lost: dict[int, str] = {}
        made.lose = self._lose  # type: ignore[method-assign]
        made.save = lambda: None  # type: ignore[method-assign]
        self.children._start_agent = self.start_agent  # type: ignore[method-assign]
        self.children.agents = [self.start_agent(node) for node in (0, 1)]
        for rank in range(4):
            self.children.start_rank(rank)
            made.connections.connected(rank, b"%d" % rank)
        self.recorder = self.begin()

    def start_agent(self, node: int) -> AgentProcess:
        name = f"c{node + 1}"
        words, log = ["sh", "-c", f"exec cat >> told-{name}"], self.folder / "agent.log"
        made = AgentProcess(name, words, dict(os.environ), str(self.folder), log, lambda: None)
        made.place = {"at": "127.0.0.1", "host": name}
        return made

    def begin(self, has_begun: Iterable[int] = range(4)) -> Recorder:
        made = Recorder(
            "1", make_run(4), self.supervisor.connections, Store(), self.paths.spool
        )  # fmt: skip
        made.start()
        for rank in has_begun:
            self.say(made, rank, event_line("status", rank, 0, 5, state="running"))
        runs = SimpleNamespace(current=made, take_late=lambda ranks: None)
        self.supervisor.runs = runs  # type: ignore[assignment]
        return made

    def say(self, run: Recorder, rank: int, *lines: bytes) -> None:
        """Write a rank's events to its spool, and receive them."""
        spool = self.paths.spool(rank) / f"{run.id}.jsonl"
        at = spool.stat().st_size if spool.exists() else 0
        with spool.open("ab") as file:
            file.write(b"".join(lines))
        receive = self.supervisor.connections._receivers[run.id]
        receive({"rank": rank, "at": at}, b"".join(lines))

    def silence(self, *nodes: int, seconds: float = SILENCE_TIMEOUT_S + 5) -> None:
        """Make these nodes silent for `seconds`, and no others; then check once."""
        for number, agent in enumerate(self.children.agents):
            agent.heard = time.monotonic() - (seconds if number in nodes else 0.0)
        self.look()

    def look(self) -> None:
        self.supervisor.note_agents()
        self.supervisor.note_ends()

    def told(self, node: str) -> str:
        file = self.folder / f"told-{node}"
        return file.read_text() if file.exists() else ""

    def answer(self, rank: int, **said: Any) -> None:
        """Reply to all open status requests to a rank."""
        asked = self.supervisor.connections._asked
        numbers = [
            content["number"] for peer, content in self.server.told
            if (peer, content["do"]) == (b"%d" % rank, "status") and content["number"] in asked
        ]  # fmt: skip
        for number in numbers:
            about = {"do": "answered", "number": number, "answer": said}
            question = SimpleNamespace(content=about, buffers=[])
            assert self.supervisor.connections.take(question)  # type: ignore[arg-type]

    def _lose(self, rank: int, how: str) -> None:
        self.lost[rank] = how
        self.supervisor.connections.gone(rank)
        self.recorder.lose({rank: how})

    def close(self) -> None:
        for agent in self.children.agents:
            agent.give_up()
            agent.wait(0)


@pytest.fixture
def two(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    monkeypatch.setattr(cluster_processes.network, "towards", lambda hosts: "127.0.0.1")
    monkeypatch.setattr(cluster_processes, "RESTART_TIMEOUT_S", 0.2)
    monkeypatch.setattr(release, "RELEASED_S", 0.0)
    monkeypatch.setattr(hub, "unregister", lambda *about: True)
    made = TwoNodes(tmp_path)
    yield made
    made.close()


BUSY = {"state": "busy", "seconds": 0, "cell_line": 3, "code": "f()"}


def hang_of(two: TwoNodes, *present: int) -> str:
    """Return why the run is stuck, once these ranks have reported that they are busy."""
    for _ in range(4):
        two.server.tick()
        for rank in present:
            two.answer(rank, stands=BUSY)
    hang = two.recorder.info.hang
    return timeless(hang.text) if hang else ""


def timeless(text: str) -> str:
    """Mask the duration, which depends on how busy this machine is."""
    return re.sub(r"silent for \d+ s", "silent for N s", text)


def test_a_silent_node_is_reported_and_ends_nothing(two: TwoNodes):
    two.silence(1)
    words = "ranks 2–3 may be cut off: node c2 has been silent for N s"
    assert hang_of(two, 0, 1) == f"{words}; ranks 0–1 are at cell line 3: `f()`"
    assert [place.state for place in two.recorder.info.hang.places] == ["silent", "busy"]  # type: ignore[union-attr]
    assert all(agent.process.poll() is None for agent in two.children.agents)
    assert two.info.exits == {} and two.lost == {} and two.info.state == "running"
    words = timeless(silent_words(two.info))
    assert words == "node c2 has been silent for N s: its ranks may be cut off"


def test_silence_of_all_nodes_ends_nothing(two: TwoNodes):
    two.silence(0, 1, seconds=86400)
    assert hang_of(two).startswith("ranks 0–1 may be cut off: node c1 has been silent for N s;")
    assert two.info.exits == {} and two.supervisor.why_all_ended() == ""
    assert all(agent.process.poll() is None for agent in two.children.agents)
    assert not two.recorder.is_over


def test_a_run_begun_while_a_node_is_silent_reports_it_at_once(two: TwoNodes):
    two.silence(1)
    two.recorder = two.begin()
    assert hang_of(two, 0, 1).startswith(
        "ranks 2–3 may be cut off: node c2 has been silent for N s"
    )
    assert two.recorder.info.hang.since == 0  # type: ignore[union-attr]


def test_a_node_that_answers_again_is_no_longer_silent(two: TwoNodes):
    two.silence(1)
    assert hang_of(two, 0, 1)
    two.silence()
    assert two.supervisor.connections.silent == {} and two.info.silent == {}
    assert hang_of(two, 0, 1, 2, 3) == ""
    [note] = two.recorder.info.notes
    assert note.startswith("the run was stuck: ranks 2–3 may be cut off: node c2 has been silent")
    for rank in range(4):
        two.say(two.recorder, rank, event_line("status", rank, 1, 9, state="ok"))
    assert two.recorder.wait(0) and two.recorder.info.state == "done"


def test_ranks_of_a_node_end_when_the_scheduler_reports_it_failed(two: TwoNodes):
    two.silence(1)
    two.over = {"c2": "its node c2 has failed"}
    two.look()
    assert two.info.exits == {"2": HOW, "3": HOW} and two.lost == {2: HOW, 3: HOW}
    assert two.children.agents[1].process.wait(10) is not None and two.children.agents[1].is_over
    assert two.recorder.running == [0, 1]
    assert two.recorder.given_up.keys() == {2, 3}
    assert two.supervisor.connections.silent == {}
    # A rank that is started later must not end with the same reason.
    assert two.supervisor.lost == {}
    two.silence(0)
    two.over = {"c1": "its node c1 has failed"}
    two.look()
    assert two.supervisor.why_all_ended() == "every rank has ended"
    assert two.recorder.wait(0)


def test_an_interrupt_ends_the_run_and_reaches_a_rank_when_it_answers_again(two: TwoNodes):
    two.silence(1)
    first = two.recorder
    first.interrupt()
    for rank in (0, 1):
        raised = event_line("error", rank, 1, 9, ename="KeyboardInterrupt", evalue="", traceback=[])
        two.say(first, rank, raised, event_line("status", rank, 2, 9, state="interrupted"))
    assert not first.wait(0)
    two.server.tick(2)
    assert first.wait(0) and first.info.state == "failed"
    words = "rank 2 was given up when the run was interrupted: node c2 has been silent for N s"
    assert first.info.failure is not None and timeless(first.info.failure.evalue) == words
    assert first.given_up.keys() == {2, 3}
    assert two.info.exits == {}, "their processes may live"
    assert "SIGINT" not in two.told("c2")
    # Both ranks are still in the first cell; the next one waits for them.
    two.silence()
    two.recorder = two.begin()
    for rank in (2, 3):
        two.answer(rank, run=first.id)
    assert poll_until(lambda: two.told("c2").count("SIGINT") == 2, 10, 0.01)
    two.server.tick(3)
    for rank in (2, 3):
        two.answer(rank, run=two.recorder.id)
    two.server.tick(3)
    assert two.told("c2").count("SIGINT") == 2


def test_an_interrupt_waits_for_a_cell_that_a_rank_has_yet_to_begin(two: TwoNodes):
    """The cell was sent to a silent node, whose ranks are still in the cell before it."""
    two.silence(1)
    first, two.recorder = two.recorder, two.begin(has_begun=[0, 1])
    two.recorder.interrupt()
    two.server.tick(2)
    assert two.recorder.given_up.keys() == {2, 3}
    two.silence()
    for rank in (2, 3):
        two.answer(rank, run=first.id)
    two.server.tick(2)
    assert "SIGINT" not in two.told("c2")
    for rank in (2, 3):
        spool = two.paths.spool(rank) / f"{two.recorder.id}.jsonl"
        spool.write_bytes(event_line("status", rank, 0, 5, state="running"))
        two.answer(rank, run=two.recorder.id)
    assert poll_until(lambda: two.told("c2").count("SIGINT") == 2, 10, 0.01)
    two.server.tick(2)
    for rank in (2, 3):
        two.answer(rank, run=None)
    two.server.tick(3)
    assert two.told("c2").count("SIGINT") == 2


def test_a_node_silent_after_an_interrupt_does_not_keep_a_run_open(two: TwoNodes):
    two.recorder.interrupt()
    for rank in (0, 1):
        two.say(two.recorder, rank, event_line("status", rank, 1, 9, state="interrupted"))
    two.server.tick(3)
    assert not two.recorder.wait(0)
    two.silence(1)
    two.server.tick(2)
    assert two.recorder.wait(0)


def test_a_restart_gives_up_a_silent_node_and_does_not_end_the_cluster(two: TwoNodes):
    two.silence(0, 1)
    old = two.children.agents[1]
    begun = time.monotonic()
    two.supervisor.restart([2])
    assert time.monotonic() - begun < 5
    two.supervisor.note_ends()
    assert old.is_over and two.children.agents[1] is not old
    how = "was given up for a restart: its node c2 does not answer"
    assert two.lost == {2: how, 3: how} and two.info.exits == {"3": how}
    assert two.info.restarts == {"2": 1}
    assert two.recorder.given_up.keys() == {2, 3}
    # All other ranks have ended; whether rank 3 has is unknown.
    two.info.exits |= dict.fromkeys(("0", "1", "2"), "exited with 1")
    assert two.supervisor.why_all_ended() == ""


def test_no_requests_or_heartbeats_are_sent_to_a_silent_agent(two: TwoNodes):
    two.silence(1)
    for _ in range(5):
        two.supervisor.last_heartbeat = 0.0
        two.look()
    looks = two.children.look()
    assert [each.done() for each in looks] == [False, True] and looks[1].result() == {}
    assert two.children.signal([2], "SIGINT") == []
    assert poll_until(lambda: "look" in two.told("c1") and "beat" in two.told("c1"), 10, 0.01)
    assert "look" not in two.told("c2") and "beat" not in two.told("c2")
    two.silence()
    two.supervisor.last_heartbeat = 0.0
    two.look()
    assert poll_until(lambda: "beat" in two.told("c2"), 10, 0.01)


CUT_OFF = (
    r"node c2 has been silent for \d+ s: its ranks may be cut off\. Wait until the node responds, "
    r"or give them up with `%cluster restart --ranks 2–3`"
)


def test_requests_to_ranks_of_a_silent_node_say_that_it_is_silent(two: TwoNodes):
    connections = two.supervisor.connections
    loads = Loads(lambda: [])
    requests = Requests(
        lambda: 4, lambda ranks: [], lambda ranks, asked: None, connections, loads, two.paths.spool
    )
    about = {"do": "apply", "ranks": [0, 3], "how": "give", "name": "x"}
    pull = SimpleNamespace(content=about, buffers=[])
    two.silence(1)
    with pytest.raises(RankroomError, match=CUT_OFF):
        requests._apply(pull)  # type: ignore[arg-type]
    debug = {"do": "debug", "rank": 3, "message": {"command": "initialize"}}
    with pytest.raises(RankroomError, match=CUT_OFF):
        DebugRelay(two.server, connections).take(  # type: ignore[arg-type]
            SimpleNamespace(content=debug, peer=b"kernel")  # type: ignore[arg-type]
        )
    found = stacks(connections, [3], two.paths.spool)
    assert timeless(found[3]) == "the rank may be cut off: node c2 has been silent for N s"


def test_a_pending_request_fails_when_its_node_falls_silent(two: TwoNodes, monkeypatch):
    connections = two.supervisor.connections
    requests = Requests.__new__(Requests)
    requests._starting, requests._demand_idle = lambda ranks: [], lambda ranks, asked: None
    requests._connections = connections

    def apply(ranks: list[int], *what: Any) -> dict[int, Future[Any]]:
        two.silence(1)  # it is noticed while the request waits
        return {rank: Future() for rank in ranks}

    monkeypatch.setattr(connections, "apply", apply)
    about = {"do": "apply", "ranks": [3], "how": "give", "name": "x"}
    with pytest.raises(RankroomError, match=CUT_OFF):
        requests._apply(SimpleNamespace(content=about, buffers=[]))  # type: ignore[arg-type]
