"""Another user tries to get into a cluster on a site that alice has started from a laptop.

bob has an account on all machines: laptop, login node and compute nodes.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import labs
from checkout import SUPPORT
from machines import Machines
from remote_python import RemotePython
from test_strangers import LISTEN, PYTHON, TRY, ports

USER = "root"  # alice's account on her laptop
BEGIN = (
    "import sys; sys.path.insert(0, TESTS)\n"
    "from cells import values\nfrom rankroom.scheduler import site\n"
    "from rankroom.remote.cluster import RemoteCluster\n"
    "cluster = RemoteCluster.start(site.load('test')).until_ready()\nvalues(cluster, 'rank')"
)


@pytest.fixture(scope="module")
def here(machines: Machines) -> Iterator[Path]:
    """Alice's folder on the laptop, in a folder that all users may enter."""
    profile = labs.profile(nodes=2, ranks_per_node=1, nodelist="")
    profile = profile.replace('nodelist = ""\n', "")
    yield labs.make_home(machines, machines.root / "strangers", USER, test=profile)
    labs.end_lines(machines, machines.root / "strangers")


@pytest.fixture(scope="module")
def cluster(machines: Machines, here: Path) -> Iterator[RemotePython]:
    """Two ranks on two nodes, and a home on the site that all may enter."""
    machines.home("alice").chmod(0o755)
    environment = dict(word.split("=", 1) for word in labs.settings(here))
    with RemotePython(machines, "laptop", USER, environment) as python:
        tests = repr(str(SUPPORT))
        assert python.do(BEGIN.replace("TESTS", tests), 240) == [0, 1]
        yield python
        assert python.do("values(cluster, 'rank')") == [0, 1]
        python.do("cluster.stop()", 240)
    machines.home("alice").chmod(0o700)


def listening(machines: Machines) -> dict[str, list[str]]:
    """The addresses and ports at which alice's processes listen, by machine."""
    found = {
        machine: [":".join(each) for each in ports(machines, machine, "alice")]
        for machine in ("login", *machines.nodes)
    }
    lines = machines.run("laptop", ["ss", "-Hltnp"]).splitlines()
    found["laptop"] = [line.split()[3] for line in lines if "python" in line or "ssh" in line]
    return {machine: places for machine, places in found.items() if places}


def test_only_the_supervisors_node_listens_at_its_address(
    machines: Machines, cluster: RemotePython
):
    found = listening(machines)
    # The login node needs only ssh, and the laptop no port at all. On a node that has neither the
    # controller nor the supervisor, ranks only connect.
    assert set(found) == {"c1"}
    assert {place.rpartition(":")[0] for place in found["c1"]} == {machines.address("c1")}


@pytest.mark.parametrize("user", ["bob"])
def test_no_port_answers_a_stranger(machines: Machines, cluster: RemotePython, user: str):
    script = machines.put(user, "try.py", TRY)
    for machine, tried in listening(machines).items():
        said = machines.run(machine, [PYTHON, script, *tried], user)
        assert json.loads(said.splitlines()[-1]) == {each: [False] * 4 for each in tried}, machine
        assert "stranger" not in machines.run(machine, ["ls", "/tmp"])


def test_another_user_receives_no_results_of_ranks(machines: Machines, cluster: RemotePython):
    for machine, places in listening(machines).items():
        script = machines.put("bob", "listen.py", LISTEN)
        with machines.start(
            machine, [PYTHON, script, *places], "bob", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as listener:
            assert listener.stdout is not None and listener.stdout.readline() == "listening\n"
            for _ in range(10):
                cluster.do('values(cluster, \'__import__("time").sleep(0.1) or "a secret"\')')
            heard = bytes.fromhex(listener.communicate("\n", timeout=60)[0])
        assert b"a secret" not in heard and b"IDS|MSG" not in heard, machine


def test_another_user_can_read_no_file(machines: Machines, cluster: RemotePython, here: Path):
    home = machines.home("alice")
    tried = 0
    for folder in (home / ".local/share/rankroom", home / ".rankroom"):
        for file in (folder, *folder.rglob("*")):
            if file == folder / "rankroom" or not file.exists():
                continue
            path = f"/home/{file.relative_to(machines.root / 'home')}"
            words = ["sh", "-c", 'cat "$0" 2>&1 || ls "$0/"', path]
            said = machines.run("login", words, "bob")
            assert "Permission denied" in said, (path, said)
            tried += 1
    names = {each.name for each in home.rglob("*")}
    assert tried > 10 and "cluster.json" in names and any(".log" in name for name in names)
    said = machines.run("laptop", ["ls", str(here / "data")], "bob")
    assert "Permission denied" in said


def test_no_secret_is_shown_by_ps_or_scontrol(
    machines: Machines, cluster: RemotePython, here: Path
):
    secrets = set()
    for root in (machines.home("alice") / ".local/share/rankroom", here / "data"):
        for file in root.glob("clusters/*/cluster.json"):
            secrets.add(json.loads(file.read_text())["rpc_key"])
        for file in root.glob("clusters/*/ipp/security/*.json"):
            about = json.loads(file.read_text())
            secrets |= {about["key"], about["curve_serverkey"]}
    secrets.discard("")
    assert len(secrets) >= 3  # of the local agent, the supervisor and the connections
    shown = ""
    for machine in ("laptop", "login", *machines.nodes):
        shown += machines.run(machine, ["ps", "axeww", "-o", "pid,args"], "bob")
    assert "rankroom.remote.agent" in shown
    assert "rankroom.remote.job" in shown and "rankroom.agent.node_agent" in shown
    for what in ("job", "step", "node"):
        shown += machines.run("login", ["scontrol", "show", what, "--details"], "bob")
    job = re.search(r"JobId=(\d+)", shown)
    assert job is not None
    script = machines.run("login", ["scontrol", "write", "batch_script", job[1], "-"], "bob")
    assert "rankroom" not in script
    for secret in secrets:
        assert secret not in shown
