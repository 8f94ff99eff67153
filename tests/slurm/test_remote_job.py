"""The job of a cluster on a site: it waits, is cancelled, or fails during a cell; and a notebook on
the login node itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import Machines
from rankroom.remote.queue import JOB_END_TIMEOUT_S
from remote import Laptop, files, until_nothing_runs

SITES = {
    "test": profile(nodes=2, ranks_per_node=1),
    "one": profile(nodes=1, ranks_per_node=2),
    "all": profile(nodes=4, ranks_per_node=1),
}
PRINTS = "import time\nfor i in range(10**6):\n    print('line', i)\n    time.sleep(0.005)"


@pytest.fixture
def laptop(machines: Machines) -> Iterator[Laptop]:
    with Laptop(machines, SITES) as made:
        made.do("from numbered import assert_numbered, written\nstore = Store()")
        yield made


def begin(laptop: Laptop, name: str = "test") -> None:
    """Start a cluster, and a run that prints numbered lines."""
    laptop.do(f"cluster = RemoteCluster.start(site.load({name!r}), 'far').until_ready()", 300)
    laptop.do(f"run = cluster.run({PRINTS!r})")
    laptop.until("min(len(written(store, run.id, rank)) for rank in (0, 1)) > 1000")


def assert_over(laptop: Laptop, said: str) -> None:
    """The run failed with this message; its record has no gaps and equals the site's."""
    assert laptop.do("run.wait(120) and run.state", 150) == "failed"
    assert said in laptop.do("run.info.failure.evalue"), laptop.do("run.info.failure.evalue")
    assert min(laptop.do("[assert_numbered(store, run.id, rank) for rank in (0, 1)]")) > 50
    laptop.until("not cluster.running", 120)
    here = laptop.do("store.paths(run.id).events.read_text()")
    there = laptop.machines.home("alice") / ".local/share/rankroom/runs" / laptop.do("run.id")
    assert here == (there / "events.jsonl").read_text()


@pytest.mark.thorough
def test_cancelling_the_job_during_a_cell_fails_the_run_and_leaves_nothing(laptop: Laptop):
    begin(laptop)
    [job] = jobs(laptop.machines)
    laptop.machines.run("login", ["scancel", job], "alice")
    assert_over(laptop, "cancelled")
    assert "is over" in laptop.do("refused(lambda: cluster.run('1'))")
    until_nothing_runs(laptop.machines)
    assert files(laptop.machines) == []


def test_a_node_that_fails_in_mid_cell_is_named(laptop: Laptop):
    begin(laptop)
    laptop.machines.crash("c2")
    try:
        laptop.until("run.running == [0]", 120)
        laptop.do("run.interrupt()")
        assert laptop.do("run.wait(60) and run.state") == "failed"
        said = laptop.do("run.info.failure.evalue")
        assert said == "rank 1 was given up: its node c2 has failed"
        assert laptop.do("assert_numbered(store, run.id, 0)") > 50
        assert "c2 has failed" in laptop.do("refused(lambda: cluster.run('1'))")
        laptop.do("cluster.stop()")
    finally:
        laptop.machines.boot("c2")
        laptop.machines.until_idle()


def test_a_start_interrupted_in_the_queue_is_resumed_by_attach(laptop: Laptop):
    """In a notebook: the start is interrupted in the queue, then attached until it is ready."""
    hold = laptop.machines.run(
        "login", ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap=sleep 600"], "bob"
    ).strip()
    assert hold.isdigit(), hold
    try:
        laptop.do("from kernel import Kernel\nkernel = Kernel(**os.environ)")
        laptop.do('kernel.run("%load_ext rankroom")')
        shown = laptop.do(
            """
import threading
def press():
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and "queue (" not in kernel.shown.stdout:
        time.sleep(0.05)
    kernel.interrupt()
vars(kernel.run("%cluster start --site all --name far", 120,
                lambda: threading.Thread(target=press).start()))
"""
        )
        [job] = jobs(laptop.machines)
        assert f"job {job} is waiting in the queue" in shown["stdout"]
        assert (
            f"job {job} was not cancelled: `%cluster attach far` waits for it again"
            in shown["error"]
        )
        assert "is waiting in the queue" in laptop.do('kernel.run("%cluster").stdout')
        said = laptop.do('kernel.run("%%distributed\\n1").error')
        assert "cannot be reached now: job" in said and "is waiting in the queue" in said
        laptop.do('kernel.restart()\nkernel.run("%load_ext rankroom")')
        assert f"far (job {job} is waiting in" in laptop.do('kernel.run("%cluster").stdout')
        laptop.machines.run("login", ["scancel", hold], "bob")
        said = laptop.do('vars(kernel.run("%cluster attach", 120))', 180)
        assert "far: 4 ranks on c1, c2, c3, c4 (CPU)" in said["stdout"], said
        laptop.do('kernel.run("%cluster stop", 90)\nkernel.close()', 120)
        until_nothing_runs(laptop.machines)
    finally:
        laptop.machines.run("login", ["scancel", hold], "bob")
        laptop.machines.until_idle()


@pytest.mark.thorough
def test_a_stale_cluster_file_of_an_earlier_job_is_ignored(laptop: Laptop):
    begin(laptop)
    left = laptop.machines.home("alice") / ".local/share/rankroom/clusters/far/cluster.json"
    text = left.read_text()
    laptop.do("cluster.stop()")
    until_nothing_runs(laptop.machines)
    # As left by a process on the site that was killed before it could clean up.
    stale = json.dumps({**json.loads(text), "state": "stopped", "message": "was stopped"})
    folder = ".local/share/rankroom/clusters/far"
    laptop.machines.run("login", ["mkdir", "-p", folder], "alice")
    laptop.machines.put("alice", f"{folder}/cluster.json", stale)
    laptop.do("cluster = RemoteCluster.start(site.load('test'), 'far')")
    laptop.do("cluster.until_ready()", 300)
    laptop.do("run = cluster.run('assert size == 2')")
    assert laptop.do("run.wait(60) and run.state") == "done"
    time.sleep(
        JOB_END_TIMEOUT_S + 5
    )  # by then, a cluster that seemed to be over would have been given up
    assert laptop.do("cluster.running")
    laptop.do("cluster.stop()")
    until_nothing_runs(laptop.machines)


def test_a_waiting_cluster_ends_when_it_is_stopped_or_its_job_is_cancelled(laptop: Laptop):
    hold = laptop.machines.run(
        "login", ["sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap=sleep 600"], "bob"
    ).strip()
    try:
        laptop.do("cluster = RemoteCluster.start(site.load('all'), 'far')")
        laptop.until("cluster.refresh().remote.state == 'pending'")
        laptop.do("cluster.stop()")
        assert jobs(laptop.machines) == [] and laptop.agents() == []
        laptop.do("cluster = RemoteCluster.start(site.load('all'), 'far')")
        laptop.until("cluster.refresh().remote.state == 'pending'")
        laptop.machines.run("login", ["scancel", *jobs(laptop.machines)], "alice")
        said = laptop.do("refused(cluster.until_ready)", 120)
        assert said.startswith("StartError: job "), said
        until_nothing_runs(laptop.machines)
    finally:
        laptop.machines.run("login", ["scancel", hold], "bob")
        laptop.machines.until_idle()


def test_stopping_a_waiting_cluster_keeps_a_running_one_of_the_same_name(
    machines: Machines, laptop: Laptop
):
    """Two computers start clusters of this name: stopping the second removes only its own files."""
    laptop.do("cluster = RemoteCluster.start(site.load('one'), 'far').until_ready()", 300)
    with Laptop(machines, SITES) as other:
        other.do("cluster = RemoteCluster.start(site.load('all'), 'far')")
        other.until("cluster.refresh().remote.state == 'pending'")
        other.do("cluster.stop()", 120)
        assert (machines.home("alice") / ".local/share/rankroom/clusters/far/cluster.json").exists()
        laptop.do("run = cluster.run('rank'); run.wait(60)")
        assert laptop.do("run.results") == {"0": "0", "1": "1"}
        laptop.do("cluster.stop()", 120)


def test_a_cluster_started_on_the_login_node_runs_in_the_notebooks_folder(machines: Machines):
    """A notebook on the login node: its ranks run in a job, in the notebook's folder."""
    sites = {"here": profile(login="", nodes=1, ranks_per_node=2)}
    with Laptop(machines, sites, "login", "alice") as login:
        login.do("cluster = RemoteCluster.start(site.load('here')).until_ready()", 300)
        login.do("run = cluster.run('import os; os.getcwd()'); run.wait(60)")
        assert login.do("run.results") == {"0": "'/home/alice'", "1": "'/home/alice'"}
        login.do("cluster.stop()")
        until_nothing(login)


def until_nothing(laptop: Laptop) -> None:
    deadline = time.monotonic() + 60
    while jobs(laptop.machines) or laptop.agents():
        assert time.monotonic() < deadline
        time.sleep(0.1)
