"""`rankroom doctor` reports leftovers, each with its remedy, and removes nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.cluster.local import Cluster
from rankroom.record.blank import BLANK_SUFFIX, Blank
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Remote
from rankroom.record.store import Store
from rankroom.system import process_tree
from record_makers import finished_record, start_record

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def own_home(home):
    return home


def doctor(*options):
    result = CliRunner().invoke(main, ["doctor", *options], prog_name="rankroom")
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def dead_cluster(name, **about):
    paths = ClusterPaths(name)
    paths.make(1)
    paths.write(ClusterInfo(name, 1, **about))
    return paths


def sleeper(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        env=os.environ | environment, stdout=subprocess.PIPE,
    )  # fmt: skip


def test_a_clean_home_is_reported_as_having_nothing_left_behind(home):
    assert doctor() == doctor("--clean") == [f"nothing was left behind in {home}"]


def test_a_dead_cluster_is_reported_and_its_processes_are_ended():
    paths = dead_cluster("dead", state="failed", message="every rank has ended")
    other = dead_cluster("other")
    mine, stranger = sleeper(RANKROOM_CLUSTER=str(paths.folder)), sleeper()
    try:
        for each in (mine, stranger):
            each.stdout.readline()
        before = [
            f"cluster dead: failed: every rank has ended; process {mine.pid} is left",
            "    `rankroom doctor --clean` ends what is left and removes its folder",
            "cluster other: failed: its supervisor is gone",
            "    `rankroom doctor --clean` removes its folder",
        ]
        assert doctor() == before
        assert mine.poll() is None
        assert doctor("--clean") == [
            before[0],
            "    ended what was left and removed its folder",
            before[2],
            "    removed its folder",
        ]
        assert mine.wait(60) == -signal.SIGTERM
        assert stranger.poll() is None
        assert not paths.folder.exists()
        assert not other.folder.exists()
        assert doctor()[0].startswith("nothing was left behind")
    finally:
        for each in (mine, stranger):
            each.kill()
            each.wait()
            each.stdout.close()


def test_a_cluster_on_a_site_is_kept_while_its_job_may_go_on():
    """Its folder records which job it is, and is needed until that job must have ended."""
    remote = Remote("there", state="running", job="17", until=time.time() + 600)
    paths = dead_cluster("far", state="running", remote=remote, supervisor=2**22)
    assert doctor("--clean") == [
        "cluster far: its local agent is gone, but its job 17 on there may still be running: "
        "`%cluster attach far` in a notebook attaches to it again",
        f"nothing was left behind in {Store().root}",
    ]
    remote.until = time.time() - 3600  # less than the clock error that is allowed for
    paths.write(ClusterInfo("far", 1, state="running", remote=remote, supervisor=2**22))
    assert "may still be running" in doctor("--clean")[0]
    remote.until = time.time() - 3 * 3600
    paths.write(ClusterInfo("far", 1, state="running", remote=remote, supervisor=2**22))
    assert "removed its folder" in doctor("--clean")[1]
    assert not paths.folder.exists()


def test_processes_of_a_cluster_without_a_folder_are_ended():
    process = sleeper(RANKROOM_CLUSTER=str(ClusterPaths("gone").folder))
    try:
        process.stdout.readline()
        assert doctor()[0].startswith("nothing was left behind")  # home may be unmounted
        ClusterPaths("gone").folder.parent.mkdir(parents=True, mode=0o700)
        [what, remedy] = doctor()
        assert what == f"cluster gone: its folder is gone; process {process.pid} is left"
        assert remedy == "    `rankroom doctor --clean` ends what is left"
        doctor("--clean")
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_spooled_events_that_a_record_may_lack_are_kept(home):
    paths = dead_cluster("dead", state="stopped")
    _, running, _ = start_record(home)
    _, done = finished_record(home)
    for run in (running.id, done.id, "20260101-000000-00000a"):
        (paths.spool(0) / f"{run}.jsonl").write_text("{}\n")
    [what, rest] = doctor("--clean")
    assert what == (
        f"cluster dead: stopped; it holds what may be missing from the record of {running.id}, "
        "so its folder is kept"
    )
    assert rest.startswith("nothing was left behind")
    assert (paths.spool(0) / f"{running.id}.jsonl").exists()
    (paths.spool(0) / f"{running.id}.jsonl").unlink()
    assert doctor("--clean")[1] == "    removed its folder"


def test_records_prepared_for_runs_that_never_began_are_removed():
    store = Store()
    store.runs.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    used = Path(Blank(store.runs).folder)
    left = used.with_name(used.name.replace(str(os.getpid()), str(gone.pid)))
    elsewhere = used.with_name(
        f".{gone.pid}-abcdef-0a1b{BLANK_SUFFIX}"
    )  # of another machine that shares this home
    for each in (left, elsewhere):
        each.mkdir()
    name = left.name.removeprefix(".").removesuffix(BLANK_SUFFIX)
    assert doctor("--clean") == [
        f"record {name}: made for a run that never began",
        "    removed it",
    ]
    assert not left.exists()
    assert used.exists() and elsewhere.exists()
    os.utime(elsewhere, (0, 0))
    assert doctor("--clean")[1] == "    removed it"
    assert not elsewhere.exists()


@pytest.mark.cluster
def test_a_cluster_that_runs_is_left_alone():
    cluster = Cluster.local(ranks=1)
    try:
        [line, rest] = doctor("--clean")
        assert line.startswith(f"cluster {cluster.name}: 1 rank, up since ")
        assert line.endswith(", in use")
        assert rest.startswith("nothing was left behind")
        run = cluster.run("rank")
        assert run.wait(60)
        assert run.results == {0: "0"}
    finally:
        cluster.stop()


@pytest.mark.cluster
def test_a_surviving_child_of_a_killed_cluster_is_ended():
    cluster = Cluster.local(ranks=1)
    source = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    run = cluster.run(source)
    assert run.wait(60)
    child = psutil.Process(int(run.results[0]))
    supervisor = psutil.Process(cluster.paths.read().supervisor)
    killed = [supervisor, *(p for p in supervisor.children(recursive=True) if p != child)]
    for process in killed:
        process.kill()
    # A killed process counts as left until it is gone.
    while any(process_tree.running(each) for each in killed):
        time.sleep(0.01)
    cluster.close()
    try:
        # The supervisor may already have prepared the files of the next record.
        [what, remedy, *prepared] = doctor()
        assert f"process {child.pid} is left" in what
        assert "ends what is left and removes its folder" in remedy
        assert not prepared or "made for a run that never began" in prepared[0]
        doctor("--clean")
        assert not process_tree.running(child)
        assert not cluster.paths.folder.exists()
    finally:
        if process_tree.running(child):
            child.kill()
