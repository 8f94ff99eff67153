"""`rankroom cluster …` in a terminal, on real ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.cluster import liveness
from rankroom.cluster.local import Cluster
from rankroom.cluster.lookup import running_clusters
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.supervisor.lease import held
from rankroom.system.polling import poll_until
from rankroom.text.rank_ranges import count_ranks

pytestmark = pytest.mark.cluster


def said(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, ["cluster", *words])
    assert done.exit_code == status, done.output
    return done.output


def test_cluster_commands_work_from_start_to_stop(home: Path):
    assert "no clusters" in said("list")
    assert "no cluster yet" in said("stop", "nowhere", status=1)
    try:
        assert "mine: 2 ranks ready" in said("start", "--ranks", "2", "--name", "mine")
        assert "2 ranks" in said("list")
        attached = Cluster.attach("mine")
        try:
            run = attached.run("import time\nkept = rank\ntime.sleep(1000)")
            time.sleep(0.3)
            stacks = said("stacks", "--ranks", "1")
            assert "── rank 1" in stacks and "time.sleep(1000)" in stacks and "rank 0" not in stacks
            assert "interrupted the ranks of mine" in said("interrupt")
            assert run.wait(10) and run.state == "interrupted"
            assert "nothing to release" in said("release", status=1)
            assert "rank 1 of mine restarted" in said("restart", "mine", "--ranks", "1")
            run = attached.run("'kept' in globals()")
            assert run.wait(20) and run.results == {0: "True", 1: "False"}
            assert "controller.log" in said("log", "mine")
        finally:
            attached.close()
        assert "restarted with 3 ranks" in said("resize", "3")
        deadline = time.monotonic() + 60
        while [len(each.ready) for each in running_clusters()] != [3]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "mine stopped" in said("stop")
        assert running_clusters() == []
    finally:
        for left in running_clusters():
            said("stop", left.name)


def test_an_attached_client_uses_a_resized_cluster_and_keeps_its_lease(home: Path):
    said("start", "--ranks", "2", "--name", "mine")
    attached = Cluster.attach("mine")
    try:
        for ranks in (3, 1):
            said("resize", str(ranks))
            deadline = time.monotonic() + 60
            while [len(each.ready) for each in running_clusters()] != [ranks]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            run = attached.run("size")
            assert run.wait(60)
            [said_once] = run.info.notes
            assert said_once.startswith("cluster mine was restarted since this notebook's")
            assert f"it has {count_ranks(ranks)} now, and earlier variables are gone" in said_once
            again = attached.run("size")
            assert again.wait(60) and again.info.notes == []  # the note is given once
            assert run.results == dict.fromkeys(range(ranks), str(ranks))
            assert held(attached.paths.folder / "lease")
    finally:
        attached.stop()


def test_a_restart_of_all_ranks_waits_until_they_are_ready(home: Path):
    said("start", "--ranks", "2", "--name", "mine")
    paths = ClusterPaths("mine")

    def ready() -> ClusterInfo:
        info = paths.read()
        assert info is not None and (sorted(info.ready), info.starting) == ([0, 1], [])
        return info

    try:
        before = ready()
        assert said("restart") == "ranks 0–1 of mine restarted, without variables\n"
        after = ready()
        assert after.supervisor == before.supervisor and after.restarts == {"0": 1, "1": 1}
        assert not {rank.pid for rank in before.ranks} & {rank.pid for rank in after.ranks}
        # A cluster whose supervisor is gone is started again, and its ranks are waited for, too.
        os.kill(after.supervisor, signal.SIGKILL)
        assert poll_until(lambda: liveness.state(after) == "gone", 60)
        assert "mine was started again: 2 ranks ready" in said("restart", "mine")
        assert ready().supervisor != after.supervisor
    finally:
        said("stop", "mine")


def test_impossible_requests_are_reported_with_their_cause(home: Path):
    assert "at least 1 rank" in said("start", "--ranks", "0", status=1)
    assert "could not be preloaded" in said("start", "--preload", "no_such", "--ranks", "1")
    name = running_clusters()[0].name
    try:
        assert "no rank 7" in said("restart", "--ranks", "7", status=1)
        assert "nothing to release" in said("release", status=1)
    finally:
        said("stop", name)
    assert "no cluster yet" in said("interrupt", status=1)
