"""A client that stops waiting for its run to begin withdraws it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankroom.cluster import supervisor_client
from rankroom.cluster.supervisor_client import SupervisorClient
from rankroom.errors import StartError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.owner import this_process
from rankroom.rpc.client import Direct
from rankroom.rpc.server import Question, Server
from rankroom.system.polling import poll_until


class Waiting:
    """A supervisor whose ranks are starting: it answers no request."""

    def __init__(self) -> None:
        self.paths = ClusterPaths("x")
        self.paths.make(2)
        self.asked: list[dict[str, Any]] = []
        self.server = Server("", self.paths.folder, self.take)
        me = this_process()
        self.info = ClusterInfo(
            "x", 2, "running", supervisor=me.pid, began=me.began, ready=[0],
            rpc=self.server.address, rpc_key=self.server.key,
        )  # fmt: skip
        self.paths.write(self.info)
        self.client = SupervisorClient(self.paths, lambda: self.info, lambda said, buffers: None)

    def take(self, question: Question) -> None:
        self.asked.append(question.content)

    def was_withdrawn(self) -> bool:
        """Whether the run that was requested was withdrawn after that."""

        def is_there() -> bool:
            return [each["do"] for each in self.asked] == ["run", "withdraw"]

        return poll_until(is_there, 10, 0.01) and self.asked[0]["mark"] == self.asked[1]["mark"]


@pytest.fixture
def waiting(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setattr(supervisor_client, "SUPERVISOR_CHECK_INTERVAL_S", 0.01)
    made = Waiting()
    yield made
    made.client.close()
    made.server.close()


def test_an_interrupt_withdraws_the_run(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    def interrupted(direct: Direct, seconds: float) -> None:
        assert poll_until(lambda: bool(waiting.asked), 10, 0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Direct, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting.client.ask_directly(do="run")
    assert waiting.was_withdrawn()


def test_a_run_waits_beyond_the_reply_timeout_while_ranks_are_starting(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor_client, "REPLY_TIMEOUT_S", 0.0)
    # At an ipc address, the server would drop the request, whose time limit has passed.
    monkeypatch.setattr(waiting.server, "address", "")
    looks: list[None] = []

    def look(client: SupervisorClient) -> None:
        looks.extend([None] * bool(waiting.asked))
        if len(looks) == 5:
            waiting.info.exits = {"1": "was killed"}

    monkeypatch.setattr(SupervisorClient, "_demand_alive", look)
    with pytest.raises(StartError, match="did not answer"):
        waiting.client.ask_directly(do="run")
    assert len(looks) == 5 and waiting.was_withdrawn()
