"""A process's connection to a cluster that other clients also use, restart and resize."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankroom.cluster import base, repair
from rankroom.cluster.base import AnyCluster
from rankroom.cluster.local import Cluster
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RankInfo
from rankroom.record.owner import this_process
from rankroom.rpc.server import Question, Server
from rankroom.supervisor.lease import held


class Kept:
    """A cluster without ranks, whose supervisor appears to be this process."""

    def __init__(self, size: int, **fields: object) -> None:
        self.paths = ClusterPaths("made")
        self.paths.make(size)
        self._server = Server("", self.paths.folder, self.take)
        self.asked: list[str] = []
        me = this_process()
        ranks = [RankInfo(rank, "c1", 100 + rank, "cpu", rank) for rank in range(size)]
        usual = {"ready": list(range(size)), "lease": 12.0, **fields}
        self.info = ClusterInfo(
            "made", size, "running", supervisor=me.pid, began=me.began, ranks=ranks,
            rpc=self._server.address, rpc_key=self._server.key, **usual,
        )  # fmt: skip
        self.paths.write(self.info)

    def take(self, question: Question) -> None:
        self.asked.append(question.content["do"])
        question.answer(run=None)

    def end(self) -> None:
        self._server.close()
        self.paths.remove()


@pytest.fixture
def kept(home: Path) -> Iterator[Kept]:
    made = Kept(4)
    yield made
    made.end()


@pytest.fixture
def attached(kept: Kept) -> Iterator[AnyCluster]:
    made = AnyCluster(kept.paths, kept.info)
    yield made
    made.close()


def test_a_client_notices_a_resized_cluster_and_holds_its_lease(kept: Kept, attached: AnyCluster):
    lease = kept.paths.folder / "lease"
    attached._restarts = {"0": 1, "1": 2}
    assert attached.size == 4 and held(lease)
    kept.end()
    again = Kept(2, restarts={"0": 3})
    assert not held(lease)
    assert attached.size == 2 and held(lease)
    assert attached._restarts == {"0": 1, "1": 0}
    attached.close()
    assert not held(lease)
    again.end()


def refuse(*about: object, **more: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_an_unreadable_cluster_file_is_read_at_the_next_refresh(
    kept: Kept, attached: AnyCluster, monkeypatch: pytest.MonkeyPatch
):
    about = dataclasses.asdict(kept.info) | {"restarts": {"0": 1}}
    kept.paths.info.write_text(json.dumps(about))  # as another process would
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert attached.refresh().restarts == {}
    assert attached.refresh().restarts == {"0": 1}


def test_a_lease_that_cannot_be_taken_is_taken_at_the_next_refresh(
    kept: Kept, attached: AnyCluster, monkeypatch: pytest.MonkeyPatch
):
    kept.end()
    again = Kept(2)
    with monkeypatch.context() as patch:
        patch.setattr(base.lease, "hold", refuse)
        attached.refresh()
    assert attached.size == 2 and held(again.paths.folder / "lease")
    again.end()


def test_a_closed_client_does_not_take_the_lease_of_a_new_cluster(kept: Kept, attached: AnyCluster):
    attached.close()
    kept.end()
    again = Kept(2)
    assert attached.size == 2 and not held(again.paths.folder / "lease")
    again.end()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_repeated_attaching_reuses_one_connection(
    kept: Kept, attached: AnyCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(AnyCluster, "current", attached)  # as `Cluster.local` sets it
    monkeypatch.setattr(repair, "begin", lambda store, prunes: None)
    first = Cluster.attach("made")
    assert first is not attached  # each may be closed separately
    before = threading.active_count(), descriptors()
    for _ in range(5):
        assert Cluster.attach("made") is first
    assert (threading.active_count(), descriptors()) == before
    assert kept.asked == ["follow"] * 6
    first.close()
    second = Cluster.attach("made")
    assert second is not first and AnyCluster.current is second
    attached.close()
    assert held(kept.paths.folder / "lease")
    kept.end()
    again = Kept(2)
    assert Cluster.attach("made") is second and second.size == 2
    assert held(again.paths.folder / "lease")
    second.close()
    assert not held(again.paths.folder / "lease")
    again.end()


def test_a_request_after_close_is_still_answered(kept: Kept, attached: AnyCluster):
    attached.interrupt()
    attached.close()
    attached._supervisor.ask("interrupt", patience=5.0)
    assert kept.asked == ["interrupt", "interrupt"]


def test_an_exception_in_a_with_block_still_stops_the_cluster(
    attached: AnyCluster, monkeypatch: pytest.MonkeyPatch
):
    stopped = []
    monkeypatch.setattr(attached, "stop", lambda: stopped.append(attached.name))
    with pytest.raises(ValueError, match="mine"), attached as cluster:
        assert cluster is attached and not stopped
        raise ValueError("mine")
    assert stopped == ["made"]


def test_an_unknown_rank_is_refused_without_a_request(kept: Kept, attached: AnyCluster):
    with pytest.raises(UsageError, match="no rank 7"):
        attached.apply(7, len, [])
    with pytest.raises(UsageError, match="no rank 7"):
        attached.debug(7, {})
    assert kept.asked == []


def test_the_status_magic_shows_the_state_of_each_rank(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    kept = Kept(4, ready=[0, 3], starting=[3], exits={"1": "was killed by SIGKILL"})
    attached = AnyCluster(kept.paths, kept.info)
    monkeypatch.setattr(AnyCluster, "current", attached)
    cluster_magic.status("")
    lines = capsys.readouterr().out.splitlines()
    states = [line.partition(f"pid {100 + rank}  ")[2] for rank, line in enumerate(lines[1:5])]
    assert states == ["ready", "was killed by SIGKILL", "is starting", "is starting"]
    attached.close()
    kept.end()
