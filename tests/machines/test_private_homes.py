"""Two homes at one path: this machine's, and a container's whose processes are visible here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from odd_machine import Machine
from rankroom.cli import main
from rankroom.cluster import launch
from rankroom.cluster.local import Cluster
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.system import path_views, process_tree

pytestmark = pytest.mark.cluster

CELL = """
import json, rankroom
run = rankroom.Cluster.attach("mine").run("rank * 10")
run.wait(60)
print(json.dumps(run.results))
"""


@pytest.fixture
def container(home: Path, tmp_path: Path) -> Iterator[Machine]:
    """A container that has its own home at the path of this machine's, and runs a cluster."""
    own = f"mkdir -p '{home}' && mount -t tmpfs -o mode=700 none '{home}'"
    made = Machine("box", tmp_path, setup=own)
    try:
        made.rankroom("cluster", "start", "--ranks", "2", "--name", "mine")
        yield made
    finally:
        made.crash()


def doctor() -> list[str]:
    result = CliRunner().invoke(main, ["doctor", "--clean"], prog_name="rankroom")
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_container_with_a_home_of_the_same_path_is_left_alone(container: Machine, home: Path):
    folder = ClusterPaths("mine").folder
    (home / "clusters").mkdir()
    seen = [each.pid for each, _ in process_tree._carriers(process_tree.CLUSTER_MARK)]
    assert seen, "this machine sees the container's processes, and what they were started with"
    assert doctor() == [f"nothing was left behind in {home}"]
    dead = ClusterPaths("mine")
    dead.make(1)
    dead.write(ClusterInfo("mine", 1, "failed", message="it was killed"))
    assert doctor() == ["cluster mine: failed: it was killed", "    removed its folder"]
    cluster = Cluster.local(ranks=1, name="mine")
    try:
        ours = {each.pid for each in launch.own_processes(cluster.paths)}
        assert cluster.paths.read().supervisor in ours
        assert all(path_views.is_same(pid, folder) for pid in ours)
        assert container.do(CELL) == {"0": "0", "1": "10"}
        cluster.restart([0])
    finally:
        cluster.stop()
    assert container.do(CELL) == {"0": "0", "1": "10"}
    container.rankroom("cluster", "stop", "mine")
    assert container.processes("rankroom") == []


def test_doctor_ends_a_leftover_process_of_the_same_home(home: Path, tmp_path: Path):
    """A container with this machine's home: its marked process belongs here, although the folder
    that the mark names exists on neither side."""
    (home / "clusters").mkdir(parents=True)
    box = Machine("box", tmp_path, environment={process_tree.CLUSTER_MARK: f"{home}/clusters/x"})
    marked = box.start("sh", "-c", "echo up; sleep 1000")
    try:
        assert marked.stdout is not None and marked.stdout.readline() == "up\n"
        [line, done] = doctor()
        assert line.startswith("cluster x: its folder is gone; process")
        assert done == "    ended what was left"
        marked.wait(60)
    finally:
        box.crash()
        marked.stdout.close()


def test_symlinks_are_resolved_within_the_root_of_the_process(tmp_path: Path):
    root = tmp_path / "root"
    for each in (root / "data/ann", tmp_path / "data/ann"):
        each.mkdir(parents=True)
    (root / "home").symlink_to("/data")
    (root / "data/me").symlink_to("../data/./ann")
    (root / "round").symlink_to("/round")
    found = path_views.stat_in_root(str(root), Path("/home/me"))
    assert found is not None and os.path.samestat(found, (root / "data/ann").stat())
    assert path_views.stat_in_root(str(root), Path("/home/you/x")) is None
    with pytest.raises(OSError, match="symbolic links"):
        path_views.stat_in_root(str(root), Path("/round/x"))
