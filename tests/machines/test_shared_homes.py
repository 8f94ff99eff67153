"""Two machines with one home: each leaves alone what runs on the other."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from odd_machine import Machine, Odd

pytestmark = pytest.mark.cluster

MAY = "was started on login1; whether it runs cannot be told from here"
CELL = """
import json, rankroom
cluster = rankroom.Cluster.attach("mine")
run = cluster.run("rank * 10")
run.wait(60)
print(json.dumps(run.results))
"""
# A run that continues after its client has exited.
BEGIN = """
import json, rankroom
cluster = rankroom.Cluster.attach("mine")
run = cluster.run('''
import pathlib, time
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
''')
print(json.dumps(run.id))
"""
LOOK = """
import json
from rankroom.cluster import lookup, repair
from rankroom.record.store import Store
store = Store()
print(json.dumps([[run.state for run in store.newest()], repair.complete_all(store),
    [info.name for info in lookup.running_clusters()]]))
"""


@pytest.fixture
def login1(home: Path, tmp_path: Path) -> Iterator[Machine]:
    """A login node on which a cluster runs."""
    made = Machine("login1", tmp_path)
    try:
        made.rankroom("cluster", "start", "--ranks", "2", "--name", "mine")
        yield made
    finally:
        made.crash()


def other(tmp_path: Path, name: str = "login2", boot: str = "b2") -> Machine:
    return Machine(name, tmp_path, boot)


@pytest.mark.parametrize(
    ("boot", "says"),
    [
        pytest.param("", "runs on login1", id="containers", marks=pytest.mark.thorough),
        pytest.param("b2", "runs on login1", id="locks"),
        pytest.param("b2", MAY, id="no-locks"),
    ],
)
def test_a_cluster_on_one_login_node_is_left_alone_on_the_other(
    login1: Machine, home: Path, tmp_path: Path, odd: Odd, boot: str, says: str
):
    """Only what the other node can say about the cluster depends on how locks are shared."""
    gate = tmp_path / "gate"
    run = login1.do(BEGIN.format(gate=str(gate)))
    login2 = other(tmp_path, boot=boot)
    if says == MAY:
        odd.fail("flock", errno.ENOLCK)
        login2.environment |= odd.environment
    try:
        listed, cleaned, *refused = login2.each(
            "cluster list", "doctor --clean", "cluster start --ranks 1 --name mine",
            "cluster stop mine", "cluster restart mine", "cluster resize 3 --name mine",
            "cluster interrupt mine", "cluster stacks mine",
        )  # fmt: skip
        assert says in listed[1]
        [line, rest] = cleaned[1].splitlines()
        assert line.startswith(f"cluster mine: {says}"), line
        assert rest.startswith("nothing was left behind")
        assert all(status == 1 and "on login1" in said for status, said in refused), refused
        assert login2.do(LOOK) == [["running"], [], []]
        # The other node can run a cluster of its own.
        started, listed, stopped = login2.each(
            "cluster start --ranks 1 --name other", "cluster list", "cluster stop other"
        )
        assert started[0] == stopped[0] == 0, (started, stopped)
        assert "1 rank ready" in listed[1]
    finally:
        login2.crash()
    gate.touch()
    assert login1.do(CELL.replace("run =", f"cluster.store.load({run!r}); run =")) == {
        "0": "0", "1": "10",
    }  # fmt: skip
    assert "done" in login1.rankroom("runs", "list")
    login1.rankroom("cluster", "stop", "mine")
    assert not (home / "clusters" / "mine").exists()
    assert login1.processes("rankroom") == []


@pytest.mark.parametrize(
    ("name", "boot", "known"),
    [
        # The same kernel has released the locks.
        pytest.param("login2", "", True, marks=pytest.mark.thorough),
        ("login2", "b2", False),
        ("login1", "b3", True),  # the same machine, booted again
    ],
)
def test_doctor_removes_a_crashed_machines_cluster_once_its_end_is_certain(
    login1: Machine, home: Path, tmp_path: Path, name: str, boot: str, known: bool
):
    login1.crash()
    after = other(tmp_path, name, boot)
    try:
        said = after.rankroom("doctor", "--clean")
        assert (home / "clusters" / "mine").exists() != known, said
        if known:
            assert "failed: its supervisor is gone" in said
            after.rankroom("cluster", "start", "--ranks", "1", "--name", "mine")
        else:
            assert "if that machine or container is gone for good" in said
            after.rankroom("doctor", "--clean", "--gone", "mine", "--yes")
            assert not (home / "clusters" / "mine").exists()
    finally:
        after.crash()
