"""Clusters start, report why a start failed, lose ranks, and leave nothing behind."""

import json
import os
import signal
import socket
import threading
import time

import psutil
import pytest

from rankroom.cluster import launch
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, StartError, UsageError
from rankroom.notebook import cluster_magic as notebook
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, Remote
from rankroom.remote.cluster import RemoteCluster
from rankroom.supervisor.processes import start_limit
from rankroom.system import control_groups
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster


def processes_of(paths):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(paths.folder) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def test_start_reports_its_progress_and_stop_leaves_nothing_behind(home, caplog):
    told = []
    cluster = Cluster.local(ranks=3, name="three", progress=told.append)
    try:
        assert told[0] == "starting the controller"
        assert told[-1] == "3 of 3 ranks ready"
        assert cluster.describe().startswith("three: 3 ranks on ")
        run = cluster.run("size")
        assert run.wait(60)
        assert run.results == dict.fromkeys(range(3), "3")
        assert processes_of(cluster.paths)
        # Connections are encrypted, so there must be no warning about unsigned messages.
        assert "signing is disabled" not in caplog.text
    finally:
        cluster.stop()
    assert processes_of(cluster.paths) == []
    assert not cluster.paths.folder.exists()


def test_every_port_in_the_connection_files_has_a_listener(home):
    """A socket would retry a closed port forever, and reach any program that opens it later."""
    cluster = Cluster.local(ranks=1)
    try:
        for file in (cluster.paths.client_file, cluster.paths.engine_file):
            about = json.loads(file.read_text())
            host = about["interface"].removeprefix("tcp://")
            for name, value in about.items():
                for port in value if isinstance(value, list) else [value]:
                    if isinstance(port, int):
                        with socket.create_connection((host, port), 5) as connected:
                            assert connected, name
    finally:
        cluster.stop()


def test_a_start_waits_for_a_controller_that_responds_late(home):
    paths, supervisor = launch.launch(2, None, None)
    poll_until(paths.client_file.exists, 20)
    [controller] = [
        each
        for each in psutil.Process(supervisor.pid).children()
        if "rankroom.supervisor.processes.controller" in each.cmdline()
    ]
    controller.suspend()
    threading.Timer(2, controller.resume).start()
    cluster = Cluster.ready(paths, supervisor)
    try:
        assert sorted(cluster.alive) == [0, 1]
    finally:
        cluster.stop()


@pytest.mark.thorough
def test_a_cluster_of_an_older_version_is_refused_with_a_remedy_and_can_be_stopped(
    home, monkeypatch, capsys
):
    """In version 1, cells were sent over another connection, and the kernel wrote the records."""
    cluster = Cluster.local(ranks=2, name="older")
    about = json.loads(cluster.paths.info.read_text())
    about |= {"desk": "127.0.0.1:9", "secret": "s", "version": 1}
    del about["rpc"], about["rpc_key"]
    cluster.paths.info.write_text(json.dumps(about))
    cluster.close()
    with pytest.raises(NoClusterError, match="`%cluster stop older` ends it"):
        Cluster.attach("older")
    monkeypatch.setattr(Cluster, "current", None)
    notebook.stop("older")
    assert capsys.readouterr().out == "older stopped\n"
    assert processes_of(ClusterPaths("older")) == []


def test_a_site_cluster_of_an_older_version_is_refused_with_a_remedy(home):
    info = ClusterInfo(
        "older", 2, "running", supervisor=os.getpid(), remote=Remote("site", job="7")
    )
    paths = ClusterPaths("older")
    paths.make(2)
    paths.write(info)
    remote = RemoteCluster.in_folder(paths)
    with pytest.raises(NoClusterError, match=rf"`kill {os.getpid()}` .* `%cluster attach older`"):
        remote.interrupt()
    remote.close()


def test_a_failing_start_shows_the_cause_and_leaves_nothing(home, monkeypatch, tmp_path):
    broken = tmp_path / "ipyparallel"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('this ipyparallel is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(StartError, match="this ipyparallel is broken") as error:
        Cluster.local(ranks=1, name="broken")
    assert "not ready after" not in str(error.value), "it was waited for in vain"
    assert processes_of(ClusterPaths("broken")) == []


@pytest.mark.alone
def test_ranks_that_share_cores_start_within_the_default_time_limit(home, monkeypatch):
    monkeypatch.delenv("RANKROOM_START_SECONDS")
    cluster = Cluster.local(ranks=16)
    try:
        assert len(cluster.alive) == 16
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "seconds", ["3", pytest.param("as users have it", marks=pytest.mark.thorough)]
)
def test_a_start_that_hangs_ends_with_a_timeout_error(home, monkeypatch, tmp_path, seconds):
    slow = tmp_path / "sitecustomize.py"
    slow.write_text(
        "import sys, time\nif 'rankroom.rank.engine' in sys.orig_argv: time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RANKROOM_START_SECONDS", seconds)
    if not seconds.isdigit():
        monkeypatch.delenv("RANKROOM_START_SECONDS")
        for_rank = start_limit.START_TIMEOUT_PER_RANK_S / control_groups.cores()
        seconds = f"{start_limit.START_TIMEOUT_S + for_rank:.0f}"
    monkeypatch.setenv("RANKROOM_PRELOAD", "none")
    with pytest.raises(StartError, match=f"rank 0 not ready after {seconds} s"):
        Cluster.local(ranks=1, name="slow")
    assert processes_of(ClusterPaths("slow")) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(0, "at least 1"), (-1, "at least 1"), (10_000, r"has \d+ cores, for \d+ ranks at most$")],
)
def test_invalid_numbers_of_ranks_are_refused(home, ranks, words):
    with pytest.raises(UsageError, match=words):
        Cluster.local(ranks=ranks)


def test_attaching_without_any_cluster_names_the_remedy(home):
    with pytest.raises(NoClusterError, match="%cluster start"):
        Cluster.attach()


def test_attaching_to_a_stale_cluster_file_is_refused(home):
    paths = ClusterPaths("stale")
    paths.make(1)
    paths.write(ClusterInfo("stale", 1, state="running", supervisor=os.getpid()))
    with pytest.raises(NoClusterError):
        Cluster.attach("stale")


def test_a_killed_rank_is_reported_and_its_last_output_is_kept(home):
    cluster = Cluster.local(ranks=2)
    try:
        run = cluster.run(
            "import os, time\nif rank == 1:\n    print('last words')\n"
            "    os.kill(os.getpid(), 9)\ntime.sleep(0.2)"
        )
        assert run.wait(60)
        assert run.state == "failed"
        assert run.info.failure.evalue.startswith("rank 1 was killed by SIGKILL")
        said = [
            e["text"] for e in cluster.store.events(run.id) if e["kind"] == "log" and e["rank"] == 1
        ]
        assert said == ["last words\n"]
        states = {r.rank: r.state for r in run.info.ranks}
        assert states == {0: "ok", 1: "lost"}
        with pytest.raises(NoClusterError, match="rank 1 was killed by SIGKILL"):
            cluster.run("1")
        assert cluster.run("1", ranks=[0]).wait(60)
    finally:
        cluster.stop()


def test_a_killed_supervisor_is_noticed_and_stop_still_cleans_up(home):
    cluster = Cluster.local(ranks=1)
    info = cluster.paths.read()
    os.kill(info.supervisor, signal.SIGKILL)
    try:
        deadline = time.monotonic() + 120
        while cluster.running and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not cluster.running
    finally:
        cluster.stop()
    deadline = time.monotonic() + 120
    while processes_of(cluster.paths) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(cluster.paths) == []


def test_the_cluster_outlives_the_process_that_started_it(home):
    pid = os.fork()
    if pid == 0:
        Cluster.local(ranks=1, name="outlives")
        os._exit(0)
    os.waitpid(pid, 0)
    cluster = Cluster.attach("outlives")
    try:
        run = cluster.run("'here'")
        assert run.wait(60)
        assert run.results == {0: "'here'"}
    finally:
        cluster.stop()


def test_supervisor_connections_limit_their_reconnect_interval_to_5_s(home):
    """A notebook may keep them for days, and another program may reuse the port."""
    cluster = Cluster.local(ranks=1)
    try:
        assert cluster.run("").wait(60)
        client = cluster._supervisor
        asking = [client._connection()._socket, *(each._socket for each in client._directs)]
        assert len(asking) == 2
        assert {each.reconnect_ivl_max for each in asking} == {5000}
    finally:
        cluster.stop()
