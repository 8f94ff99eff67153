"""What a supervisor does when it is told to end, cannot start, or learns that ranks have ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.errors import UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.supervisor import supervisor as module
from rankroom.supervisor.processes import hub
from rankroom.supervisor.runs import Runs
from rankroom.supervisor.supervisor import Supervisor


@pytest.fixture
def paths(home: Path) -> ClusterPaths:
    made = ClusterPaths("a")
    made.make(2)
    made.write(ClusterInfo("a", 2))
    return made


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the signal handlers that a supervisor replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


class Children:
    """Stands in for the processes of a cluster, and starts none."""

    address = "127.0.0.1"

    def __init__(self, *about: object) -> None:
        self.ranks: dict[int, Any] = {}

    def places(self) -> list[Any]:
        return []

    def signal(self, *about: object) -> list[Future[Any]]:
        return []

    def look(self) -> None: ...

    def start_controller(self) -> None: ...

    def start_agents(self, modules: object) -> None:
        signal.raise_signal(signal.SIGTERM)  # as if during a compilation


def test_a_signal_during_the_start_of_a_supervisor_ends_it(paths, signals, monkeypatch):
    monkeypatch.setattr(module, "Processes", Children)
    made = Supervisor(paths, paths.read(), 0)
    made.server.close()
    assert made.stopping.is_set() and made.told_to_end


@pytest.mark.parametrize("error", [OSError("no port"), UsageError("config.toml cannot be read")])
def test_the_reason_of_a_failed_start_is_recorded(paths, signals, monkeypatch, error: Exception):
    def refuse(*about: object) -> None:
        raise error

    monkeypatch.setattr(module, "Supervisor", refuse)
    with pytest.raises(type(error)):
        module.main(["", str(paths.folder), "0"])
    info = paths.read()
    assert (info.state, info.message) == ("failed", f"cannot start: {error}")


def test_an_error_at_the_end_is_not_recorded_as_a_failed_start(paths, signals, monkeypatch):
    def make(paths: ClusterPaths, info: ClusterInfo, devices: int) -> Any:
        def close() -> None:
            info.state = "ending"
            paths.write(info)
            raise OSError("no process can be listed")

        return SimpleNamespace(info=info, watch=lambda: None, close=close)

    monkeypatch.setattr(module, "Supervisor", make)
    with pytest.raises(OSError, match="listed"):
        module.main(["", str(paths.folder), "0"])
    assert (paths.read().state, paths.read().message) == ("ending", "")


def bare(info: ClusterInfo) -> Supervisor:
    """Return the supervisor of a cluster without processes."""
    made = Supervisor.__new__(Supervisor)
    made.info, made.ready, made.changed, made.lost = info, set(), False, {}
    made.restarts = SimpleNamespace(lock=threading.Lock(), asked=set())  # type: ignore[assignment]
    return made


def test_a_rank_that_ended_before_its_ready_message_is_not_ready():
    made = bare(ClusterInfo("a", 2, exits={"1": "was killed by SIGKILL"}))
    connected: list[int] = []
    made.children = SimpleNamespace(starts={0: 1, 1: 1})  # type: ignore[assignment]
    made.connections = SimpleNamespace(connected=lambda rank, peer: connected.append(rank))  # type: ignore[assignment]
    made.runs = SimpleNamespace(came=lambda rank: None)  # type: ignore[assignment]
    made.wake = lambda: None  # type: ignore[method-assign]
    for rank in (0, 1):
        made.note_ready(rank, 1, b"")
    assert made.ready == {0} and connected == [0]


@pytest.mark.parametrize(
    ("exits", "why"),
    [
        (["was killed by SIGKILL"], "rank 0 was killed by SIGKILL"),
        (["was killed by SIGKILL"] * 2, "every rank was killed by SIGKILL"),
        (["was killed by SIGKILL", "exited with 1"], "every rank has ended"),
        (["was killed by SIGKILL", ""], ""),
        (["could not be started: too many processes"], ""),
        (["could not be started: too many processes", "exited with 1"], ""),
        (
            ["was given up: its node c4 has failed"] * 2,
            "every rank was given up: its node c4 has failed",
        ),
        (["exited with 1", "was given up for a restart: its node c4 does not answer"], ""),
    ],
)
def test_a_cluster_fails_with_its_last_rank_but_not_by_a_fork_that_is_refused(
    exits: list[str], why: str
):
    ended = {str(rank): how for rank, how in enumerate(exits) if how}
    assert bare(ClusterInfo("a", len(exits), exits=ended)).why_all_ended() == why


def test_restarted_ranks_are_unregistered_in_one_request(monkeypatch):
    made = bare(ClusterInfo("a", 3))
    told: list[list[int]] = []
    monkeypatch.setattr(hub, "unregister", lambda file, ranks, *seconds: told.append(ranks))
    started: list[int] = []
    made.children = SimpleNamespace(end=lambda ranks: {}, start_rank=started.append)  # type: ignore[assignment]
    made.paths = SimpleNamespace(engine_file=None)  # type: ignore[assignment]
    noted: list[list[int]] = []
    made.runs = SimpleNamespace(take_late=noted.append)  # type: ignore[assignment]
    made.lose = lambda rank, how: None  # type: ignore[method-assign]
    made.save = lambda: None  # type: ignore[method-assign]
    made.restart([0, 2])
    assert noted == told == [[0, 2]] and started == [0, 2]


def test_a_rank_that_connected_while_being_ended_is_not_ready_after_restart(monkeypatch):
    made = bare(ClusterInfo("a", 2))
    monkeypatch.setattr(hub, "unregister", lambda *about: None)

    def end(ranks: list[int]) -> dict[int, str]:
        made.ready |= {0, 1}  # as note_ready does, in its thread
        return {}

    made.children = SimpleNamespace(end=end, start_rank=lambda rank: None)  # type: ignore[assignment]
    made.paths = SimpleNamespace(engine_file=None)  # type: ignore[assignment]
    made.runs = SimpleNamespace(take_late=lambda ranks: None)  # type: ignore[assignment]
    made.lose = lambda rank, how: None  # type: ignore[method-assign]
    made.save = lambda: None  # type: ignore[method-assign]
    made.restart([0])
    assert made.ready == {1}


@pytest.mark.parametrize("is_ending", [False, True])
def test_no_record_is_prepared_once_the_cluster_is_ending(is_ending: bool):
    runs = Runs.__new__(Runs)
    runs.is_ending = is_ending
    later: list[object] = []
    runs._server = SimpleNamespace(later=lambda seconds, call: later.append(call))  # type: ignore[assignment]
    runs._late = SimpleNamespace(follow=lambda recorder: None)  # type: ignore[assignment]
    runs._store = SimpleNamespace(prepare=None)  # type: ignore[assignment]
    info = SimpleNamespace(ranks=[0], size=1, state="done")
    runs._note_end(SimpleNamespace(info=info, was_released=False), False, 0)  # type: ignore[arg-type]
    assert len(later) == (not is_ending)
