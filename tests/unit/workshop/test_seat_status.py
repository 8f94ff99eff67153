"""The status of a learner, read from the files of the learner's runs, clusters and lessons."""

import json
import os
import time
from pathlib import Path

import pytest

from rankroom.course import progress
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import Failure, Hang, Place, RankInfo, RunInfo
from rankroom.record.owner import no_process, this_process
from rankroom.record.store import Store
from rankroom.system import process_tree
from rankroom.workshop import seat_status
from rankroom.workshop.seat_status import StatusReader


@pytest.fixture
def reader(home: Path) -> StatusReader:
    return StatusReader()


def run(number: int = 1, **more) -> RunInfo:
    start = 1_700_000_000_000_000 + number
    known = {"title": "train()", "owner": this_process(), "state": "done", "end": start + 5}
    info = RunInfo(f"20260514-120000-{number:06x}", "course", 2, start, **{**known, **more})
    writer = Store().create(info, "train()")
    writer.update(info)
    return info


def cluster(name: str = "course", ready=(0, 1), exits=None, **more) -> ClusterPaths:
    paths = ClusterPaths(name)
    paths.make(2)
    pid = os.getpid()
    ranks = [RankInfo(rank, "here", pid, "cpu", rank) for rank in range(2)]
    info = ClusterInfo(
        name, 2, **{"state": "running", "created": time.time(), **more}, supervisor=pid,
        began=process_tree.began(pid) or 0, ranks=ranks, ready=list(ready), exits=exits or {},
    )  # fmt: skip
    paths.write(info)
    return paths


def test_a_learner_who_has_done_nothing_has_not_started(reader: StatusReader):
    found = reader.read()
    assert (found.state, found.why, found.ranks, found.run, found.lesson) == (
        "not started", "", {}, {}, None,
    )  # fmt: skip


def test_ranks_that_wait_for_a_cell_are_idle(reader: StatusReader):
    cluster()
    found = reader.read()
    assert (found.state, found.ranks) == ("idle", {"alive": 2, "of": 2})


def test_the_status_follows_a_run_until_it_is_done(reader: StatusReader):
    cluster()
    info = run(state="running", end=None)
    found = reader.read()
    assert (found.state, found.run["title"], found.run["id"]) == ("running", "train()", info.id)
    info.state, info.end = "done", info.start + 9
    Store().paths(info.id).run.write_text(json.dumps(info.to_json()))
    assert reader.read().state == "idle"


def test_a_run_that_is_stuck_says_why(reader: StatusReader):
    run(state="running", end=None, hang=Hang(5_000_000, "rank 0 waits in allreduce"))
    found = reader.read()
    assert (found.state, found.why) == ("stuck", "rank 0 waits in allreduce")
    assert found.since == pytest.approx(found.run["since"] + 5)


def test_a_rank_in_the_debugger_is_not_stuck(reader: StatusReader):
    hang = Hang(1, "rank 0 asks for a command", [Place([0], "asks", "asks")])
    run(state="running", end=None, hang=hang)
    found = reader.read()
    assert (found.state, found.why) == ("running", "rank 0 asks for a command")


def test_a_failure_is_told_by_its_first_line_until_the_next_run(reader: StatusReader):
    run(state="failed", failure=Failure(1, "ZeroDivisionError", "division by zero\nmore", 3))
    found = reader.read()
    assert (found.state, found.why) == (
        "failed", "rank 1, cell line 3: ZeroDivisionError: division by zero",
    )  # fmt: skip
    run(2)
    assert reader.read().state == "idle"


def test_a_wrong_answer_is_no_failure(reader: StatusReader):
    run(state="failed", failure=Failure(0, "Wrong", "your parts hold 7 values of 8", 3))
    found = reader.read()
    assert (found.state, found.why) == ("idle", "not yet: your parts hold 7 values of 8")


def test_a_rank_that_is_down_is_reported(reader: StatusReader):
    cluster(ready=[0], exits={"1": "was killed by signal 9"})
    found = reader.read()
    assert (found.state, found.ranks) == ("failed", {"alive": 1, "of": 2})
    assert "rank 1 is down" in found.why and "killed by signal 9" in found.why


def test_a_run_whose_supervisor_was_killed_is_reported(reader: StatusReader):
    run(state="running", end=None, owner=no_process())
    found = reader.read()
    assert (found.state, found.why) == ("failed", "its supervisor was killed")


def test_the_ranks_of_a_stopped_cluster_are_not_counted(reader: StatusReader):
    cluster(state="stopped")
    assert reader.read().ranks == {}


def test_runs_and_clusters_that_ended_before_the_start_are_not_reported(home: Path):
    now = time.time()
    reader = StatusReader(now)
    then = {"state": "failed", "failure": Failure(0, "ValueError", "private", 3)}
    info = run(**then)
    paths = cluster(state="failed", message="rank 1 ran out of memory")
    os.utime(paths.info, (now - 60, now - 60))
    found = reader.read()
    assert (found.state, found.why, found.run, found.ranks) == ("not started", "", {}, {})
    # A run that began before and has failed since is reported.
    info.end = int((now + 5) * 1e6)
    Store().paths(info.id).run.write_text(json.dumps(info.to_json()))
    assert "private" in reader.read().why
    os.utime(paths.info, (now + 5, now + 5))
    assert reader.read().why == "rank 1 ran out of memory"


def test_a_run_that_began_before_the_start_and_continues_is_reported(home: Path):
    run(state="running", end=None)
    assert StatusReader(time.time()).read().state == "running"


def test_damaged_files_are_ignored(reader: StatusReader, home: Path):
    info = run()
    Store().paths(info.id).run.write_text("{")
    (home / "course.json").write_text("[")
    folder = home / "clusters" / "broken"
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text("{")
    assert reader.read().state == "not started"


def test_lesson_exercise_and_progress_are_reported(reader: StatusReader):
    progress.begin(3)
    assert reader.read().lesson == 3
    progress.note("ring.1", passed=False)
    progress.note("ring.1", passed=True)
    found = reader.read()
    assert found.lesson == 3
    assert {**found.exercise, "at": 0} == {"name": "ring.1", "passed": True, "tries": 2, "at": 0}
    assert found.progress["tries"] == {"ring.1": 2}
    assert list(found.progress["passed"]) == ["ring.1"]


def test_progress_of_an_earlier_version_has_no_lesson_at_first(reader: StatusReader, home: Path):
    home.mkdir()
    (home / "course.json").write_text('{"user": "ada", "tries": {"ring.1": 1}, "passed": {}}')
    assert reader.read().lesson is None
    progress.note("ring.1", passed=False)
    assert reader.read().lesson == 3


def test_a_failed_read_of_the_runs_is_retried(
    reader: StatusReader, monkeypatch: pytest.MonkeyPatch
):
    run(state="running", end=None)

    def broken(store: Store) -> list[str]:
        raise OSError("stale")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "ids", broken)
        assert reader.read().state == "not started"
    now = time.monotonic()
    monkeypatch.setattr(
        seat_status.time, "monotonic", lambda: now + seat_status.MAX_CACHE_AGE_S + 1
    )
    assert reader.read().state == "running"


def test_unchanged_files_are_not_read_again(reader: StatusReader, monkeypatch: pytest.MonkeyPatch):
    cluster()
    run()
    progress.begin(1)
    first = reader.read()
    for name in ("all_clusters", "_cluster"):
        monkeypatch.setattr(seat_status, name, lambda: pytest.fail("read again"))
    monkeypatch.setattr(Store, "load", lambda *about: pytest.fail("read again"))
    monkeypatch.setattr(Store, "ids", lambda *about: pytest.fail("read again"))
    monkeypatch.setattr(progress, "read", lambda *about: pytest.fail("read again"))
    assert reader.read() == first
