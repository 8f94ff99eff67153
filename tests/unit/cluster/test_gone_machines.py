"""Clusters of a machine or container that is gone for good, which cannot be told from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.cluster import liveness
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node, Remote
from rankroom.record.model import RunInfo, event_line
from rankroom.record.store import Store
from rankroom.scheduler import ended_jobs
from rankroom.system import process_tree
from record_makers import log, lost_record

SPACE = "pod-1//another-boot/pid:[1]"  # a container without a machine id
SAID = [event_line("status", 0, 0, 0, state="running", spool={"stdout": 0}), log(0, "one\n", 1)]
MORE = log(0, "two\n", 2)
WITH = ("--clean", "--gone", "local")


@pytest.fixture
def run(home: Path) -> RunInfo:
    """A run in a container that is gone; its record lacks the log lines in the spool."""
    made = lost_record(home, *SAID, MORE, pid=os.getpid())
    paths, raw = ClusterPaths("local"), Store().paths(made.id)
    info = paths.read()
    assert info is not None
    info.host, info.space, info.supervisor, info.began = "pod-1", SPACE, 7, 8
    paths.write(info)
    about = json.loads(raw.run.read_text())
    about["owner"] = {"host": "pod-1", "pid": 7, "space": SPACE, "began": 8}
    about["ranks"][0]["host"] = "pod-1"
    raw.run.write_text(json.dumps(about))
    os.utime(raw.events, (0, 0))
    return made


def doctor(*options: str, answer: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(main, ["doctor", *options], input=answer, prog_name="rankroom")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output


def test_a_cluster_of_a_gone_machine_is_kept_until_its_user_confirms(run: RunInfo):
    folder = ClusterPaths("local").folder
    status, said = doctor("--clean")
    assert status == 0 and "whether it runs cannot be told from here" in said
    assert "`rankroom doctor --clean --gone local` here" in said
    assert "nothing was left behind" in said
    for answer in ("n\n", ""):
        status, said = doctor(*WITH, answer=answer)
        assert status == 1 and "folder? If the cluster is still running, this" in said
    assert folder.exists() and Store().load(run.id).state == "lost"
    status, said = doctor(*WITH, answer="y\n")
    assert status == 0 and "completed its records and removed its folder" in said
    assert not folder.exists()


def test_records_of_a_gone_machine_are_completed(run: RunInfo):
    assert doctor(*WITH, "--yes")[0] == 0
    store = Store()
    found = store.load(run.id)
    assert found.state == "failed" and found.failure is not None
    assert found.failure.evalue == "rank 0 ended with its cluster: its machine is gone"
    texts = [event["text"] for event in store.events(run.id) if event["kind"] == "log"]
    assert texts == ["one\n", "two\n"]


def test_a_recently_written_record_keeps_the_cluster(run: RunInfo):
    os.utime(Store().paths(run.id).events, (time.time(), time.time()))
    status, said = doctor(*WITH, "--yes")
    assert status == 1 and f"cluster local is kept: the record of {run.id}" in said
    info = ClusterPaths("local").read()
    assert info is not None and info.state == "running"
    assert Store().load(run.id).state == "running"


def test_a_record_owned_by_another_process_keeps_the_cluster(run: RunInfo):
    raw = Store().paths(run.id).run
    about = json.loads(raw.read_text())
    about["owner"]["space"] = "pod-2//another-boot/pid:[2]"
    raw.write_text(json.dumps(about))
    assert doctor(*WITH, "--yes")[0] == 1
    assert ClusterPaths("local").folder.exists()


def test_a_process_of_the_cluster_on_this_machine_keeps_it(run: RunInfo):
    mark = {process_tree.CLUSTER_MARK: str(ClusterPaths("local").folder)}
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | mark, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        status, said = doctor(*WITH, "--yes")
        assert status == 1 and f"process {process.pid} is still there" in said
        process.communicate(b"\n")
    assert ClusterPaths("local").folder.exists()


def test_the_gone_option_is_refused_where_it_does_not_apply(run: RunInfo):
    assert doctor("--clean", "--gone", "x", "--yes") == (
        1, "Error: --gone x: there is no cluster of this name; there are: local\n",
    )  # fmt: skip
    status, said = doctor("--gone", "local")
    assert status == 2 and "give both" in said
    paths = ClusterPaths("local")
    info = paths.read()
    assert info is not None
    info.state = "failed"
    paths.write(info)
    status, said = doctor(*WITH, "--yes")
    assert status == 1 and "`rankroom doctor --clean` is enough" in said


def test_of_a_cluster_on_a_site_only_the_local_agent_is_replaced(run: RunInfo):
    """Its job may still be running, and only an agent can follow or cancel it."""
    paths = ClusterPaths("local")
    info = paths.read()
    assert info is not None
    info.remote = Remote("hpc", state="running", job="77", name="local", until=time.time() + 3600)
    info.allocation = Allocation("77", (Node("c1", 1),), info.remote.until)
    paths.write(info)
    status, said = doctor(*WITH, answer="y\n")
    assert status == 0 and "Start a new agent for cluster local here?" in said
    assert "it can be attached to from here now" in said
    now = paths.read()
    assert now is not None and now.remote is not None and now.remote.job == "77"
    assert liveness.state(now) == "gone" and liveness.remote_on(now)
    assert not liveness.is_elsewhere(now) and liveness.here(now.host, now)
    assert "`%cluster attach local` in a notebook attaches to it again" in doctor("--clean")[1]
    assert paths.read() is not None


def test_a_cluster_of_a_running_job_is_not_removed_as_gone(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
):
    paths = ClusterPaths("local")
    info = paths.read()
    assert info is not None
    info.allocation = Allocation("77", (Node("c1", 1),))
    paths.write(info)
    monkeypatch.setattr(liveness, "_answers", lambda info: "unknown")
    monkeypatch.setattr(ended_jobs, "state", lambda granted: "on")
    status, said = doctor(*WITH, "--yes")
    assert status == 1 and "job 77 goes on, so the cluster is left alone" in said
    assert paths.folder.exists()


def test_a_kept_cluster_does_not_prevent_the_cleanup_of_others(run: RunInfo):
    os.utime(Store().paths(run.id).events, (time.time(), time.time()))
    dead = ClusterPaths("zero")
    dead.make(1)
    dead.write(ClusterInfo("zero", 1, "failed", message="it was killed"))
    status, said = doctor(*WITH, "--yes")
    assert status == 1 and "cluster local is kept" in said
    assert "cluster zero: failed: it was killed\n    removed its folder" in said
    assert not dead.folder.exists()
