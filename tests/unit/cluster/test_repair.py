"""A record whose writer is gone is completed from what ranks left, but only on request."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from numbered import assert_numbered, written
from rankroom.analysis.timeline import Timeline
from rankroom.cluster import actions, liveness, repair
from rankroom.cluster.local import Cluster
from rankroom.cluster.repair import complete, complete_all
from rankroom.errors import NoClusterError, RunOverError, UnreadableRecordError, UsageError
from rankroom.record.cluster_file import Allocation, ClusterPaths, Node
from rankroom.record.model import Owner, RunInfo, event_line
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from rankroom.scheduler import ended_jobs
from rankroom.supervisor.recorder import Recorder
from rankroom.system import pid_space, process_tree
from record_makers import gone_process, log, lost_record, snapshot, start_record

VERSION_1 = Path(__file__).parents[2] / "support" / "version_1"
SAID = [event_line("status", 0, 0, 0, state="running", spool={"stdout": 0}), log(0, "one\n", 1)]
END = [log(0, "two\n", 2), event_line("status", 0, 3, 9, state="ok")]


@pytest.fixture
def lost(home: Path):
    """Return a function that makes a lost run of one rank; its record has only the first line."""
    return partial(lost_record, home)


@pytest.fixture
def going_on(home: Path) -> Iterator[int]:
    """The pid of a rank that outlives its supervisor, as ranks of an earlier version do."""
    environment = os.environ | {process_tree.CLUSTER_MARK: str(ClusterPaths("local").folder)}
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout
        rank.stdout.readline()  # only then is its environment set
        yield rank.pid
        rank.communicate()


def texts(store: Store, run: RunInfo) -> list[str]:
    return [event["text"] for event in store.events(run.id) if event["kind"] == "log"]


def test_a_record_is_left_alone_while_a_rank_is_running(home, lost, going_on):
    run = lost(*SAID, pid=going_on)
    store = Store()
    assert complete_all(store) == []
    assert store.load(run.id).state == "lost"
    assert texts(store, run) == []


def test_another_process_with_the_pid_of_a_rank_is_not_that_rank(home, lost):
    run = lost(*SAID, pid=os.getpid())
    assert complete_all(Store()) == [run.id]


def test_a_record_is_completed_once_all_ranks_have_reported_their_end(home, lost, going_on):
    run = lost(*SAID, *END, pid=going_on)
    store = Store()
    assert complete_all(store) == [run.id]
    found = store.load(run.id)
    assert (found.state, found.lines, found.notes) == ("done", 2, [])
    assert texts(store, run) == ["one\n", "two\n"]
    assert not list(home.glob(f"clusters/*/spool/*/{run.id}.jsonl"))
    assert complete_all(store) == []


def test_a_record_is_completed_with_the_last_output_of_a_dead_rank(home, lost):
    run = lost(*SAID, pid=gone_process().pid)
    (ClusterPaths("local").spool(0) / "stdout").write_text("one\nlast words\n")
    store = Store()
    assert complete(store, store.load(run.id))
    found = store.load(run.id)
    assert found.state == "failed" and found.failure is not None
    assert found.failure.evalue == ("rank 0 ended with its cluster: its supervisor was killed")
    assert "last words\n" in "".join(texts(store, run))


def test_a_rank_that_never_received_the_cell_is_reported_as_such(home, lost):
    run = lost(b"", pid=gone_process().pid)
    store = Store()
    assert complete_all(store) == [run.id]
    found = store.load(run.id)
    assert found.failure is not None
    assert found.failure.evalue.startswith("rank 0 never received the cell")


def test_a_rank_with_spooled_events_only_is_known_to_have_received_the_cell(home, lost):
    """While a cell is silent, its rank first reports after about a second."""
    run = lost(b"", pid=gone_process().pid)
    spool = ClusterPaths("local").spool(0) / f"{run.id}.jsonl"
    spool.write_bytes(b"".join(SAID))
    store = Store()
    assert complete_all(store) == [run.id]
    found = store.load(run.id)
    assert found.failure is not None
    assert found.failure.evalue == "rank 0 ended with its cluster: its supervisor was killed"
    assert "one\n" in "".join(texts(store, run))


def test_a_run_that_left_no_spool_stays_lost(home):
    _, run, writer = start_record(home, owner=gone_process())
    writer.close()
    assert not complete(Store(), Store().load(run.id))
    assert Store().load(run.id).state == "lost"


def test_a_record_with_a_live_writer_is_left_alone(home, lost):
    run = lost(*SAID, *END, pid=gone_process().pid)
    raw = Store().paths(run.id).run
    run.owner = this_process()
    raw.write_text(json.dumps(run.to_json()))
    assert complete_all(Store()) == []
    assert texts(Store(), run) == []


def test_a_record_stays_lost_if_its_completion_fails_and_is_retried(home, lost, monkeypatch):
    pid = gone_process().pid
    one, other = (lost(*SAID, *END, pid=pid, name=name) for name in ("local.1a", "local.2b"))
    store, replay = Store(), Recorder._replay

    def refuse(recorder: Recorder) -> None:
        if recorder.id == one.id:
            raise OSError(errno.EIO, "Input/output error")
        replay(recorder)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_replay", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            complete_all(store)
    assert [store.load(run.id).state for run in (one, other)] == ["lost", "done"]
    assert complete_all(store) == [one.id]
    assert store.load(one.id).state == "done" and texts(store, one) == ["one\n", "two\n"]


def test_a_record_stays_lost_if_its_recorder_cannot_be_created(home, lost, monkeypatch):
    pid = gone_process().pid
    one, other = (lost(*SAID, *END, pid=pid, name=name) for name in ("local.1a", "local.2b"))
    store = Store()

    def make(source: str, run: RunInfo, *about: object) -> Recorder:
        if run.id == one.id:
            raise UsageError("config.toml cannot be read")
        return Recorder(source, run, *about)

    with monkeypatch.context() as patch:
        patch.setattr(repair, "Recorder", make)
        with pytest.raises(UsageError, match="cannot be read"):
            complete_all(store)
    assert [store.load(run.id).state for run in (one, other)] == ["lost", "done"]
    assert complete_all(store) == [one.id]


def test_a_late_completion_ends_a_run_at_its_last_known_event(home, lost):
    run = lost(*SAID, pid=gone_process().pid)
    (ClusterPaths("local").spool(0) / "stdout").write_text("one\nlast words\n")
    raw, store = Store().paths(run.id).run, Store()
    about = json.loads(raw.read_text())
    about["start"] -= 3_600_000_000
    raw.write_text(json.dumps(about))
    assert complete_all(store) == [run.id]
    found = store.load(run.id)
    assert found.end == found.start + 1000  # the time of its only log line
    assert [event["t"] for event in store.events(run.id)][-2:] == [1000, 1000]


@pytest.mark.parametrize("ahead", [30_000_000, -30_000_000])
def test_the_time_of_a_loss_is_corrected_for_the_clock_of_the_rank(home, lost, ahead: int):
    """Its events are timed by its own clock, its loss by the clock of the run."""
    begun = event_line("status", 0, 0, ahead, state="running", spool={"stdout": 0})
    run = lost(begun, log(0, "one\n", 1, ahead + 5_000_000), pid=gone_process().pid)
    store = Store()
    about = json.loads(store.paths(run.id).run.read_text())
    about["ranks"][0]["clock"] = {"offset": ahead, "error": 10}
    store.paths(run.id).run.write_text(json.dumps(about))
    assert complete(store, store.load(run.id))
    found = store.load(run.id)
    assert found.end is not None and found.end - found.start == 5_000_000
    assert Timeline.read(found, store.paths(run.id).events).ended[0] == 5_000_000


def test_reading_a_record_writes_nothing(home, lost):
    run = lost(*SAID, *END, pid=gone_process().pid)
    before = snapshot(home)
    store = Store()
    assert [each.state for each in store.newest()] == ["lost"]
    assert store.load(run.id).state == "lost"
    assert store.read(run.id).state == "lost"
    assert store.tail(run.id).read().state == "lost"
    assert texts(store, run) == []
    assert store.prune(dry_run=True) == []
    assert snapshot(home) == before


def test_a_cluster_set_aside_is_removed_once_its_records_are_complete(home, lost, going_on):
    ended = lost(*SAID, *END, pid=gone_process().pid, name="local.1a2b")
    goes_on = lost(*SAID, pid=going_on, name="local.3c4d")
    store = Store()
    assert complete_all(store) == [ended.id]
    assert not ClusterPaths("local.1a2b").folder.exists()
    assert ClusterPaths("local.3c4d").folder.exists()
    assert store.load(ended.id).state == "done"
    assert store.load(goes_on.id).state == "lost"


def test_a_record_of_an_ended_job_is_completed_from_any_machine(home, lost):
    run = lost(*SAID, pid=os.getpid())
    paths, store = ClusterPaths("local"), Store()
    raw = store.paths(run.id)
    about = json.loads(raw.run.read_text())
    for each in (*about["ranks"], about["owner"]):
        each["host"] = "c1"
    about["owner"]["space"] = "c1/another/boot/pid"
    raw.run.write_text(json.dumps(about))
    assert complete_all(store) == [], "it was written to a moment ago"
    os.utime(raw.events, (0, 0))
    assert complete_all(store) == [], "of other machines only a job's end is known"
    info = paths.read()
    info.allocation = Allocation("12", (Node("c1", 1),), time.time() + 1000)
    info.state, info.message = "stopped", "job 12 was cancelled"
    paths.write(info)
    assert complete_all(store) == [run.id]
    found = store.load(run.id)
    assert found.state == "failed"
    assert found.failure.evalue == "rank 0 ended with its cluster: job 12 was cancelled"
    assert texts(store, run) == ["one\n"]
    assert not paths.folder.exists()


def test_a_record_is_completed_at_once_where_its_job_is_known_to_be_over(home, lost, monkeypatch):
    """Even if written to a moment ago: its writer, on another machine, was killed with its job."""
    run = lost(*SAID, *END, pid=os.getpid())
    paths, store = ClusterPaths("local"), Store()
    said, asked = "over", []
    monkeypatch.setattr(ended_jobs, "state", lambda granted: asked.append(granted.job) or said)
    monkeypatch.setattr(liveness, "alive", lambda info: False)  # the supervisor counts as gone
    info = paths.read()
    info.allocation = Allocation("12", (Node("c1", 1),), time.time() + 1000)
    info.host, info.space, info.supervisor, info.began = "c1", "c1/another/boot/pid", 7, 8
    paths.write(info)
    raw = store.paths(run.id).run
    about = json.loads(raw.read_text())
    about["owner"] = {"host": "c1", "pid": 9, "space": info.space, "began": 9}
    about["ranks"][0]["host"] = "c1"
    raw.write_text(json.dumps(about))
    assert complete_all(store) == [] and asked == [], "another process writes it"
    about["owner"] |= {"pid": 7, "began": 8}
    raw.write_text(json.dumps(about))
    for said in ("on", "ending", "unknown"):
        assert complete_all(store) == [], said
    said = "over"
    assert complete_all(store) == [run.id]
    assert store.load(run.id).state == "done" and texts(store, run) == ["one\n", "two\n"]


@pytest.fixture
def earlier(home: Path) -> str:
    """What version 1 left: its kernel was killed during a run, in the middle of a line, and later
    its keeper (the supervisor), while the ranks went on printing. Returns the run's id."""
    shutil.copytree(VERSION_1, home)
    gone = gone_process()
    [run] = home.glob("runs/*/run.json")
    for file in (run, home / "clusters/before/cluster.json"):
        about = json.loads(file.read_text())
        for each in (*about["ranks"], about.get("owner", {})):
            each |= {"host": socket.gethostname(), "pid": gone.pid}
        about |= {"keeper": gone.pid} if "keeper" in about else {}
        file.write_text(json.dumps(about))
    return run.parent.name


def test_a_record_that_version_1_wrote_half_of_is_completed(earlier: str):
    store = Store()
    assert [each.state for each in store.newest()] == ["lost"]
    printed = [(ClusterPaths("before").spool(rank) / "stdout").read_text() for rank in (0, 1)]
    assert complete_all(store) == [earlier]
    run = store.load(earlier)
    assert (run.state, run.notes) == ("failed", [])
    assert run.failure is not None and "its supervisor was killed" in run.failure.evalue
    for rank in (0, 1):
        assert assert_numbered(store, earlier, rank) > 20
        assert written(store, earlier, rank) == printed[rank]
    assert run.lines == sum(text.count("\n") for text in printed)
    assert ClusterPaths("before").unfinished() == []
    assert complete_all(store) == []


def test_a_cluster_of_version_1_is_refused_in_one_line(earlier: str):
    with pytest.raises(NoClusterError) as told:
        Cluster(ClusterPaths("before"), ClusterPaths("before").read())
    assert "was started by another version of Rankroom" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_record_that_cannot_be_read_now_is_reported(home, lost, monkeypatch):
    run = lost(*SAID, *END, pid=gone_process().pid)
    load = Store.load

    def fail(self: Store, run_id: str) -> RunInfo:
        raise UnreadableRecordError("cannot be read")

    with monkeypatch.context() as patch, pytest.raises(UnreadableRecordError):
        patch.setattr(Store, "load", fail)
        complete_all(Store())
    assert Store.load is load and complete_all(Store()) == [run.id]


def test_a_run_that_only_seems_lost_can_be_acted_on(home):
    """Its writer, on another machine, may be stuck: it knows whether the run is over."""
    owner = Owner("elsewhere", 7, str(pid_space.PidSpace("elsewhere", "m", "b", "p")), 1)
    store, run, writer = start_record(home, owner=owner)
    writer.close()
    os.utime(store.paths(run.id).events, (1e9, 1e9))
    assert store.load(run.id).state == "lost"
    assert actions.running_run(store, run.id).id == run.id
    store, run, writer = start_record(home, owner=gone_process())
    writer.close()
    with pytest.raises(RunOverError, match="is lost"):
        actions.running_run(store, run.id)
