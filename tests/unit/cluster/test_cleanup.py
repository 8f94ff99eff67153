"""What `rankroom doctor` treats as left over, and what it leaves alone."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankroom.cluster import cleanup, liveness
from rankroom.errors import UnreadableRecordError, UsageError
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node, Remote
from rankroom.record.store import MAY_LACK_OUTPUT, Store
from rankroom.scheduler import ended_jobs
from rankroom.system import pid_space, process_tree
from record_makers import finished_record, gone_process, make_run

RUN = "20260101-000000-000000"


@pytest.fixture
def left(home: Path) -> ClusterPaths:
    """A failed cluster, with output of a run in its rank's spool."""
    paths = ClusterPaths("x")
    paths.make(1)
    paths.write(ClusterInfo("x", 1, "failed", created=time.time()))
    (paths.spool(0) / f"{RUN}.jsonl").write_text("{}\n")
    return paths


def found(paths: ClusterPaths) -> cleanup.Finding:
    (finding,) = cleanup._of_cluster(paths, Store())
    return finding


def test_doctor_reports_that_a_job_may_still_be_running(left: ClusterPaths):
    remote = Remote("hpc", state="submitting", others=[])
    left.write(ClusterInfo("x", 1, "running", remote=remote, supervisor=2**22))
    said = found(left).what
    assert "its local agent is gone, but a job that it may have on hpc may still be running" in said


def test_output_of_a_missing_record_may_be_removed_with_its_cluster(left: ClusterPaths):
    assert found(left).clean is not None


def test_output_of_a_record_that_cannot_be_read_now_is_kept(
    left: ClusterPaths, monkeypatch: pytest.MonkeyPatch
):
    def unreadable(self: Store, run_id: str) -> None:
        raise UnreadableRecordError(f"cannot read it: {errno.EIO}")

    monkeypatch.setattr(Store, "load", unreadable)
    finding = found(left)
    assert finding.clean is None and f"of {RUN}, so its folder is kept" in finding.what


@pytest.mark.parametrize(
    ("note", "is_kept"),
    [
        ("output may be missing from the record: Stale file handle", True),
        (MAY_LACK_OUTPUT.format(trouble="Disk quota exceeded"), True),
        ("details of spans are missing from rank 0", False),
    ],
)
def test_output_that_a_record_may_lack_is_kept(
    left: ClusterPaths, home: Path, note: str, is_kept: bool
):
    store, run = finished_record(home, id=RUN, notes=[note])
    assert run.may_lack_output == is_kept
    (finding,) = cleanup._of_cluster(left, store)
    assert (finding.clean is None) == is_kept


def test_a_new_cluster_with_the_name_of_a_dead_one_is_left_alone(left: ClusterPaths):
    clean = found(left).clean
    assert clean is not None
    left.write(ClusterInfo("x", 1, created=time.time() + 1))
    with pytest.raises(UsageError, match="cluster x was started again or removed in the meantime"):
        clean()
    assert left.folder.exists()


def test_a_supervisor_that_is_still_closing_is_waited_for(home: Path):
    paths = ClusterPaths("x")
    paths.make(1)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={process_tree.CLUSTER_MARK: str(paths.folder)},
    ) as supervisor:  # fmt: skip
        assert supervisor.stdout and supervisor.stdin
        supervisor.stdout.readline()  # only then is its environment set
        about = {"supervisor": supervisor.pid, "began": process_tree.began(supervisor.pid) or 0}
        here = {"host": socket.gethostname(), "space": str(pid_space.here())}
        paths.write(ClusterInfo("x", 1, "failed", created=time.time(), **about, **here))
        clean = found(paths).clean
        assert clean is not None
        closing = threading.Timer(0.5, supervisor.stdin.close)
        closing.start()
        clean()
        closing.join()
    assert supervisor.returncode == 0 and not paths.folder.exists()


def test_a_recent_folder_without_cluster_json_is_left_alone(home: Path):
    paths = ClusterPaths("x")
    paths.make(1)
    assert list(cleanup._of_cluster(paths, Store())) == []
    os.utime(paths.folder, (0, 0))
    clean = found(paths).clean
    assert clean is not None
    clean()
    assert not paths.folder.exists()


def test_an_unreadable_folder_is_not_called_removed(home: Path, monkeypatch: pytest.MonkeyPatch):
    folder = home / "clusters"
    folder.mkdir(parents=True)
    loop = folder / "x"
    loop.symlink_to(loop)
    mine = [(SimpleNamespace(pid=7), str(loop))]
    monkeypatch.setattr(cleanup.process_tree, "belonging", lambda variable: mine)
    assert list(cleanup._without_folder(folder)) == []
    loop.unlink()
    assert len(list(cleanup._without_folder(folder))) == 1


@pytest.mark.parametrize("text", ["", "{", '{"version": 1000}'])
def test_output_of_a_record_that_cannot_be_understood_is_kept(left: ClusterPaths, text: str):
    store = Store()
    store.create(make_run(1, id=RUN, owner=gone_process()), "").close()
    store.paths(RUN).run.write_text(text)
    assert found(left).clean is None


@pytest.mark.parametrize(
    ("in_s", "said", "kept"),  # seconds until the job's time limit; None: no limit
    [
        (9_000, "unknown", True),
        (9_000, "on", True),
        (9_000, "over", False),
        (9_000, "ending", False),
        (-90_000, "unknown", False),
        (-90_000, "on", True),  # its time limit was extended
        (None, "unknown", True),
        (None, "over", False),
    ],
)
@pytest.mark.parametrize("answer", [ConnectionRefusedError, TimeoutError])
@pytest.mark.parametrize("nodes", [("c9", ""), ("c9",)])
def test_a_cluster_is_kept_while_its_job_may_still_be_running(
    home: Path, monkeypatch: pytest.MonkeyPatch, in_s: int | None, said: str, kept: bool,
    answer: type[OSError], nodes: tuple[str, ...],
):  # fmt: skip
    """On a node of the job and elsewhere, if the supervisor refuses connections or is silent."""

    def ask(*about: object, **question: object) -> None:
        raise answer

    monkeypatch.setattr(liveness, "ask", ask)
    monkeypatch.setattr(ended_jobs, "state", lambda granted: said)
    liveness._over.cache_clear()
    until = time.time() + in_s if in_s else 0.0
    granted = Allocation("7", tuple(Node(n or socket.gethostname(), 1) for n in nodes), until)
    info = ClusterInfo("x", 2, "running", supervisor=1, host="c9", allocation=granted)
    paths = ClusterPaths("x")
    paths.make(2)
    paths.write(info)
    finding = found(paths)
    assert (finding.clean is None) == kept, finding.what
    if answer is ConnectionRefusedError:
        assert ("does not answer from here" in finding.what) == kept
    assert ("job 7" in finding.what or "up since" in finding.what) == kept
