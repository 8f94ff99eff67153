"""Replicas of a growing record: copied piece by piece, over a connection that may be cut."""

from __future__ import annotations

import asyncio
import base64
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankroom.errors import RankroomError, RecordError, SshError, UnreadableRecordError
from rankroom.record.model import Json, RankInfo, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store, Writer
from rankroom.remote import replica
from rankroom.remote.cluster import RemoteCluster
from rankroom.remote.login_node import LoginNode
from rankroom.remote.replica import Replicas
from rankroom.rpc.client import Answer, RpcError
from rankroom.scheduler.site import Site
from rankroom.ssh.host import LocalHost

START = 1_700_000_000_000_000


class There:
    """A record on a site, with its writer and the replies to requests for it."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.run = RunInfo(
            "20231114-221320-000000", "far", 1, START, [RankInfo(0, "c1", 7, "cpu")], "running",
            title="x", owner=this_process(),
        )  # fmt: skip
        assert self.run.owner is not None
        self.run.owner.host = "c1"
        self.source = "print('é')"
        self.writer: Writer = self.store.create(self.run, self.source)
        self.count = 0

    @property
    def events(self) -> Path:
        return self.store.paths(self.run.id).events

    def write(self, lines: int) -> None:
        for _ in range(lines):
            line = event_line("log", 0, self.count, self.count, stream="stdout", text="line é\n")
            self.writer.append(line)
            self.count += 1

    def end(self) -> None:
        self.run.state, self.run.end = "done", START + 1
        self.writer.finish(self.run)

    def answer(self, after: int, most: int = 100) -> tuple[Json, str, int, bytes]:
        """Reply as the supervisor does: run.json, source, `after`, and events from that byte on."""
        data = self.events.read_bytes()[after : after + most]
        told = self.run.to_json()
        if after + len(data) < self.events.stat().st_size:
            told["state"] = "running"
        return told, self.source, after, data


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


def replicas(here: Store, login: Any = None, since: float = START / 1e6 - 1) -> Replicas:
    """The replicas as a newly started agent finds them."""

    async def ask(*about: object, **more: object) -> Answer:
        raise AssertionError("these tests bring it themselves")

    where = login or LoginNode(Site("far"), LocalHost())
    return Replicas(here, "far", since, ask, where, here.runs.parent / "replicated")


class Login:
    """A fake login node. It replies to "finish" with `runs` and, the first times, with one of
    `troubles` each; to "events" with what `events` returns."""

    def __init__(
        self, runs: list[Json], events: Callable[[str, int], Json], troubles: tuple[str, ...] = ()
    ) -> None:
        self.runs, self.events = runs, events
        self.troubles = [*troubles]
        self.asked: list[str] = []

    async def ask(self, command: str, *words: str) -> Json:
        self.asked.append(command)
        if command == "finish":
            return {"runs": self.runs, "trouble": self.troubles.pop(0) if self.troubles else ""}
        return self.events(words[0], int(words[1]))


def coded(data: bytes) -> str:
    """Encode events as in a login node's reply."""
    return base64.b64encode(data).decode()


def bring(there: There, kept: Replicas) -> None:
    """Copy all of the record so far."""
    while True:
        after = max(0, kept.size(there.run.id))
        kept.take(*there.answer(after))
        if kept.size(there.run.id) == there.events.stat().st_size:
            return


def same(there: There, here: Store) -> bool:
    one, other = there.store.paths(there.run.id), here.paths(there.run.id)
    return all(
        (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
        for name in ("source.py", "events.jsonl", "run.json")
    )


def test_a_record_that_grows_is_followed_to_its_end(there: There, here: Store):
    kept = replicas(here)
    for lines in (0, 1, 40, 0, 3):
        there.write(lines)
        bring(there, kept)
        assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()
        # It is live as long as the agent that copies it, whichever host writes the original.
        assert here.load(there.run.id).state == "running"
        assert kept.live == [there.run.id] and not kept.is_complete(there.run.id)
    there.end()
    bring(there, kept)
    assert same(there, here) and kept.live == [] and kept.is_complete(there.run.id)


def test_every_line_is_copied_once_despite_lost_or_repeated_replies(there: There, here: Store):
    """Replies are lost or come twice, and agents are restarted."""
    chance = random.Random(5)
    kept = replicas(here)
    for _ in range(60):
        there.write(chance.randrange(5))
        if chance.random() < 0.3:
            kept = replicas(here)
        answers = [there.answer(max(0, kept.size(there.run.id)), chance.randrange(1, 200))] * 2
        for answer in answers[: chance.randrange(3)]:
            kept.take(*answer)
    there.end()
    bring(there, kept)
    assert same(there, here)


def test_a_reply_taken_concurrently_is_written_only_once(there: There, here: Store):
    """The start of a cell and the supervisor's news may request the same events at once."""
    kept = replicas(here)
    kept.take(*there.answer(0))
    for _ in range(50):
        there.write(20)
        answer = there.answer(kept.size(there.run.id), 10_000)
        with ThreadPoolExecutor(4) as pool:
            for taken in [pool.submit(kept.take, *answer) for _ in range(4)]:
                taken.result()
    assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()


def test_a_reply_from_before_the_end_that_arrives_after_it_is_ignored(there: There, here: Store):
    kept = replicas(here)
    there.write(2)
    older = there.answer(0)
    there.end()
    bring(there, kept)
    kept.take(*older)
    assert same(there, here) and kept.live == [] and kept._writers == {}


def test_an_older_reply_does_not_undo_newer_changes(there: There, here: Store):
    kept = replicas(here)
    there.write(2)
    older = there.answer(0)
    there.write(2)
    there.run.notes = ["newer"]
    bring(there, kept)
    kept.take(*older)
    assert here.load(there.run.id).notes == ["newer"]


def test_a_record_the_site_cannot_read_for_a_while_is_requested_again(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "RETRY_DELAY_S", 0.0)
    there.write(3)
    there.end()
    refused = Answer(error=UnreadableRecordError.__name__, text="cannot read it: Stale file handle")
    answers: list[Answer | Exception] = [refused, RpcError("OSError(5)"), refused]

    async def ask(seconds: float, **question: Any) -> Answer:
        if answers:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        told, source, _, data = there.answer(question["after"], 10_000)
        answer = Answer(run=told, source=source, changed="1")
        answer.buffers = [data]
        return answer

    async def all_of_it() -> str:
        kept = replicas(here)
        kept._ask = ask
        trouble = await kept.begin_now(there.run.id)
        await asyncio.wait_for(kept._tasks[there.run.id], 30)
        return trouble

    assert "Stale file handle" in asyncio.run(all_of_it())
    assert same(there, here) and not answers


def test_a_gap_is_refused(there: There, here: Store):
    kept = replicas(here)
    there.write(9)
    kept.take(*there.answer(0, 0))
    with pytest.raises(RecordError, match="has 0 bytes, but the received events begin at byte 60"):
        kept.take(*there.answer(60))
    bring(there, kept)
    assert here.paths(there.run.id).events.read_bytes() == there.events.read_bytes()


def test_events_refused_by_a_full_disk_are_taken_when_sent_again(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    kept = replicas(here)
    there.write(3)
    bring(there, kept)
    there.write(5)

    def refuse(self: Writer, lines: bytes) -> None:
        raise RecordError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(RecordError):
        patch.setattr(Writer, "append", refuse)
        bring(there, kept)
    there.end()
    bring(there, kept)
    assert same(there, here)


def test_a_run_whose_replication_ends_early_is_lost_with_a_note(there: There, here: Store):
    kept = replicas(here)
    there.write(2)
    bring(there, kept)
    kept.leave("no more of it")
    run = here.load(there.run.id)
    assert run.state == "lost" and run.notes == ["no more of it"]
    # The next agent continues with it all the same.
    there.write(2)
    there.end()
    bring(there, replicas(here))
    assert same(there, here)


def test_other_clusters_runs_are_left_alone(there: There, here: Store):
    here.create(RunInfo("20231114-221320-000001", "another", 1, START), "1").close()
    assert replicas(here).live == []


def test_a_record_that_is_complete_is_not_read_or_asked_for_again(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    kept = replicas(here)
    there.write(2)
    there.end()
    bring(there, kept)
    monkeypatch.setattr(Store, "load", lambda self, run_id: pytest.fail("it is done"))
    assert kept.live == [] and kept.is_complete(there.run.id)
    shutil.rmtree(here.paths(there.run.id).folder)  # pruned
    kept.begin(there.run.id)  # a task would raise here, without an event loop
    assert here.ids() == []


@pytest.mark.parametrize("at_stop", [False, True])
@pytest.mark.parametrize("most", [1, 100])
def test_events_written_after_a_run_are_copied_when_the_cluster_ends(
    there: There, here: Store, most: int, at_stop: bool
):
    there.write(2)
    there.end()

    def events(run_id: str, after: int) -> Json:
        told, source, _, data = there.answer(after, most)
        return {"run": told, "source": source, "events": coded(data)}

    login = Login([there.run.to_json()], events)
    kept = replicas(here, login)
    bring(there, kept)
    with there.events.open("ab") as file:
        for number in (2, 3):
            file.write(event_line("log", 0, number, number, stream="stdout", text=f"{number}\n"))
    login.runs[0]["size"] = there.events.stat().st_size

    async def end() -> None:
        await (kept.bring_late(login.runs) if at_stop else kept.finish())

    asyncio.run(end())
    assert same(there, here)
    shutil.rmtree(here.paths(there.run.id).folder)  # pruned
    login.runs[0]["size"] += 100
    asyncio.run(end())
    assert here.ids() == []


def test_a_clock_that_is_ahead_hides_no_run(there: There, here: Store):
    kept = replicas(here, since=START / 1e6 + 1800)
    bring(there, kept)
    assert kept.live == [there.run.id] and not kept.are_whole


def test_one_damaged_record_does_not_block_the_others(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "NO_PROGRESS_TIMEOUT_S", 0.0)
    there.write(9)
    there.end()
    damaged = replace(there.run, id="20231114-221320-00000f").to_json()

    def events(run_id: str, after: int) -> Json:
        if run_id == damaged["id"]:
            raise RankroomError("the record is damaged")
        told, source, _, data = there.answer(after)
        return {"run": told, "source": source, "events": coded(data)}

    login = Login([damaged, there.run.to_json()], events)
    asyncio.run(replicas(here, login).finish())
    assert same(there, here)


def test_finish_is_retried_for_incomplete_records_and_copies_others_at_once(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    came = []

    async def pause(seconds: float) -> None:
        came.append(same(there, here))

    monkeypatch.setattr(replica.asyncio, "sleep", pause)
    there.write(9)
    there.end()

    def events(run_id: str, after: int) -> Json:
        told, source, _, data = there.answer(after, 10_000)
        return {"run": told, "source": source, "events": coded(data)}

    login = Login([there.run.to_json()], events, ("[Errno 5] Input/output error",) * 2)
    asyncio.run(replicas(here, login).finish())
    assert came == [True, True]
    assert login.asked.count("finish") == 3


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_record_is_waited_for_while_its_writer_may_live(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch, is_lost: bool
):
    """Requests are paced, as each is a command on the login node, which completes the record as
    soon as it can."""
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            there.end()

    monkeypatch.setattr(replica.asyncio, "sleep", pause)
    there.write(9)

    def events(run_id: str, after: int) -> Json:
        told, source, _, data = there.answer(after, 10_000)
        if is_lost and told["state"] == "running":  # how it ended cannot be told yet
            told["state"] = "lost"
        return {"run": told, "source": source, "events": coded(data)}

    login = Login([there.run.to_json()], events)
    asyncio.run(replicas(here, login).finish())
    assert same(there, here)
    assert pauses == [replica.RETRY_DELAY_S] * 3
    assert login.asked.count("finish") == 4


def test_copying_continues_while_it_progresses_or_the_site_is_unreachable(
    there: There, here: Store, monkeypatch: pytest.MonkeyPatch
):
    """A large record takes minutes, and the connection may be cut several times."""
    clock = [0.0]
    monkeypatch.setattr(replica.time, "monotonic", lambda: clock[0])

    async def pause(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(replica.asyncio, "sleep", pause)
    there.write(40)
    there.end()
    pieces = []

    def events(run_id: str, after: int) -> Json:
        clock[0] += 20.0
        pieces.append(after)
        if len(pieces) % 3 == 0:
            raise SshError("the link is cut", "lost")
        if 10 < len(pieces) < 20:  # as if a VPN were down for minutes
            raise SshError("cannot reach login", "lost")
        told, source, _, data = there.answer(after)
        return {"run": told, "source": source, "events": coded(data)}

    asyncio.run(replicas(here, Login([there.run.to_json()], events)).finish())
    assert same(there, here) and clock[0] > 5 * replica.NO_PROGRESS_TIMEOUT_S


def test_an_unreadable_record_times_out(there: There, here: Store, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(replica.time, "monotonic", lambda: clock[0])

    async def pause(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(replica.asyncio, "sleep", pause)
    there.write(3)

    def events(run_id: str, after: int) -> Json:
        raise RankroomError("cannot read it there")

    asyncio.run(replicas(here, Login([there.run.to_json()], events)).finish())
    assert replica.NO_PROGRESS_TIMEOUT_S <= clock[0] < 2 * replica.NO_PROGRESS_TIMEOUT_S


def test_a_run_without_a_replica_continues_until_its_record_arrives(there: There, here: Store):
    """Until the record arrives, the run is shown as the agent reports it."""
    cluster = RemoteCluster.__new__(RemoteCluster)
    cluster.store = here
    cluster._ask = lambda *about, **more: {}  # type: ignore[method-assign]
    told = there.run.to_json() | {"state": "done", "end": START + 1, "notes": ["no room here"]}
    run = cluster._run_of(told)
    assert (run.state, run.info.notes) == ("running", ["no room here"])
    assert not run.wait(0.05)
    there.write(3)
    there.end()
    bring(there, replicas(here))
    assert run.wait(60) and run.state == "done"


def test_a_removed_replica_is_not_copied_again_by_another_agent(there: There, here: Store):
    there.write(2)
    there.end()
    bring(there, replicas(here))
    shutil.rmtree(here.paths(there.run.id).folder)
    login = Login([there.run.to_json() | {"size": 9}], lambda *about: pytest.fail("it is done"))
    another = replicas(here, login)
    another.begin(there.run.id)  # a task would raise here, without an event loop
    asyncio.run(another.finish())
    assert here.ids() == []
