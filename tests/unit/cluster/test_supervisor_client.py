"""A process's connections to a supervisor: shared by threads, and reopened after a fork."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankroom.cluster import supervisor_client
from rankroom.cluster.supervisor_client import SupervisorClient
from rankroom.errors import RankroomError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.owner import this_process
from rankroom.rpc.server import Question, Server


class Listening:
    """A cluster whose supervisor appears to be this process, and a client of it."""

    def __init__(self, home: Path) -> None:
        self.paths = ClusterPaths("x")
        self.paths.make(1)
        self.waiting: list[Question] = []
        self.server = Server("", self.paths.folder, self.take)
        me = this_process()
        self.info = ClusterInfo(
            "x", 1, "running", supervisor=me.pid, began=me.began,
            rpc=self.server.address, rpc_key=self.server.key,
        )  # fmt: skip
        self.paths.write(self.info)
        self.looks = 0
        self.client = SupervisorClient(self.paths, self.refresh, lambda said, buffers: None)

    def take(self, question: Question) -> None:
        if question.content["do"] == "wait":
            self.waiting.append(question)
        elif question.content["do"] == "withdraw":
            for each in self.waiting:
                assert each.content["mark"] == question.content["mark"]
                each.refuse(RankroomError("it has not run"))
        else:
            question.answer(said=1)

    def refresh(self) -> ClusterInfo:
        self.looks += 1
        time.sleep(0.01)  # lets other threads in
        return self.info


@pytest.fixture
def listening(home: Path) -> Iterator[Listening]:
    made = Listening(home)
    yield made
    made.client.close()
    made.server.close()


def threads() -> int:
    return sum(each.name == "rankroom-rpc" for each in threading.enumerate())


def test_concurrent_first_requests_share_a_connection(listening: Listening):
    before = threads()
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda number: listening.client.ask("look"), range(8)))
    assert [each["said"] for each in said] == [1] * 8
    assert threads() == before + 1


def test_a_direct_connection_is_replaced_if_the_supervisor_changes(
    listening: Listening, tmp_path: Path
):
    assert listening.client.ask_directly(do="run")["said"] == 1
    (old,) = listening.client._directs
    (tmp_path / "other").mkdir()
    other = Server("", tmp_path / "other", lambda question: question.answer(said=2))
    listening.info.rpc, listening.info.rpc_key = other.address, other.key
    assert listening.client.ask_directly(do="run")["said"] == 2
    assert listening.client._directs != [old] and len(listening.client._directs) == 1
    other.close()


def test_a_cancelled_request_is_withdrawn_and_its_answer_awaited(listening: Listening):
    begun, pressed = time.monotonic(), list[int]()
    threading.Timer(0.1, pressed.append, [1]).start()
    with pytest.raises(RankroomError, match="it has not run"):
        listening.client.ask_directly(lambda: bool(pressed), do="wait")
    assert pressed and time.monotonic() - begun < 20


def test_a_forked_process_opens_its_own_connections(listening: Listening):
    assert listening.client.ask("look")["said"] == listening.client.ask_directly(do="run")["said"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)  # waiting on the parent's connections would never end
            for said in (listening.client.ask_directly(do="run"), listening.client.ask("look")):
                assert said["said"] == 1
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert listening.client.ask("look")["said"] == listening.client.ask_directly(do="run")["said"]


def test_an_idle_client_still_refreshes(listening: Listening, monkeypatch: pytest.MonkeyPatch):
    """If the cluster has a new supervisor, an idle client has to hold its lease, too."""
    monkeypatch.setattr(supervisor_client, "RENEW_S", 0.01)
    listening.client.ask("look")
    before, until = listening.looks, time.monotonic() + 20
    while listening.looks < before + 3:
        assert time.monotonic() < until
        time.sleep(0.01)
