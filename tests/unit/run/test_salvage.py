"""A run that has lost its kernel is looked after by whoever reads its record."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node
from rankroom.record.model import RankInfo, RunInfo, event_line
from rankroom.run.salvage import GOES_ON, TendedStore, salvage
from record_makers import gone_process, log, start_record

SAID = [event_line("status", 0, 0, 0, state="running", spool={"stdout": 0}), log(0, "one\n", 1)]
END = [log(0, "two\n", 2), event_line("status", 0, 3, 9, state="ok")]


@pytest.fixture
def lost(home: Path):
    """Makes a lost run of one rank, whose spool holds all of `lines` and the record the first."""

    def make(*lines: bytes, pid: int, name: str = "local") -> RunInfo:
        _, run, writer = start_record(
            home, size=1, owner=gone_process(), ranks=[RankInfo(0, "here", pid, "cpu")]
        )
        writer.append(lines[0])
        writer.close()
        paths = ClusterPaths(name)
        paths.make(1)
        paths.write(ClusterInfo("local", 1, "running", ranks=run.ranks, created=time.time()))
        (paths.spool(0) / f"{run.id}.jsonl").write_bytes(b"".join(lines))
        return run

    return make


def texts(store: TendedStore, run: RunInfo) -> list[str]:
    return [event["text"] for event in store.events(run.id) if event["kind"] == "log"]


def test_while_a_rank_goes_on_the_run_is_no_lost_one(home, lost):
    run = lost(*SAID, pid=os.getpid())
    found = TendedStore().load(run.id)
    assert (found.state, found.notes) == ("running", [GOES_ON])
    assert TendedStore().prune(max_age=-1) == [], "and it is not pruned"
    assert texts(TendedStore(), run) == []


def test_when_all_ranks_have_said_their_end_the_record_is_completed(home, lost):
    run = lost(*SAID, *END, pid=os.getpid())
    found = TendedStore().load(run.id)
    assert (found.state, found.lines, found.notes) == ("done", 2, [])
    assert texts(TendedStore(), run) == ["one\n", "two\n"]
    assert not list(home.glob(f"clusters/*/spool/*/{run.id}.jsonl"))


def test_a_rank_that_is_gone_says_nothing_more(home, lost):
    run = lost(*SAID, pid=gone_process().pid)
    (ClusterPaths("local").spool(0) / "stdout").write_text("one\nlast words\n")
    found = TendedStore().load(run.id)
    assert found.state == "failed" and found.failure is not None
    assert found.failure.evalue == "rank 0 ended with its cluster"
    assert "last words\n" in "".join(texts(TendedStore(), run))


def test_what_nothing_is_left_of_is_lost(home):
    _, run, writer = start_record(home, owner=gone_process())
    writer.close()
    assert TendedStore().load(run.id).state == "lost"


def test_a_cluster_that_was_set_aside_goes_when_its_records_are_complete(home, lost):
    ended = lost(*SAID, *END, pid=gone_process().pid, name="local.1a2b")
    goes_on = lost(*SAID, pid=os.getpid(), name="local.3c4d")
    salvage(TendedStore())
    assert not ClusterPaths("local.1a2b").folder.exists()
    assert ClusterPaths("local.3c4d").folder.exists()
    assert TendedStore().load(ended.id).state == "done"
    assert TendedStore().load(goes_on.id).state == "running"


def test_a_record_whose_job_took_its_kernel_along_is_completed_from_any_machine(home, lost):
    run = lost(*SAID, pid=os.getpid())
    paths, store = ClusterPaths("local"), TendedStore()
    raw = store.paths(run.id)
    raw.run.write_text(raw.run.read_text().replace(socket.gethostname(), "c1"))
    assert store.load(run.id).state == "running", "it was written to a moment ago"
    os.utime(raw.events, (0, 0))
    assert store.load(run.id).state == "lost", "of other machines only a job's end is known"
    info = paths.read()
    info.allocation = Allocation("12", (Node("c1", 1),), time.time() + 1000)
    info.state, info.message = "stopped", "job 12 was cancelled"
    paths.write(info)
    found = store.load(run.id)
    assert found.state == "failed"
    assert found.failure.evalue == "rank 0 ended with its cluster: job 12 was cancelled"
    assert texts(store, run) == ["one\n"]
    assert not paths.folder.exists()
