"""Another user tries to get in, from a node of the job, another node, and the login node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from job_python import JobPython, cluster_folder
from machines import Machines

PYTHON = sys.executable
# Tries at each port what needs no secret: ZMQ, ipyparallel and HTTP requests.
TRY = """
import contextlib, json, sys, threading, urllib.request
import zmq
from jupyter_client.session import Session
CODE = "open('/tmp/stranger', 'w')"
answers = {}

def attempt(place):
    session, got = Session(key=b""), []
    for kind in (zmq.DEALER, zmq.SUB):
        socket = zmq.Context.instance().socket(kind)
        socket.LINGER, socket.SNDTIMEO = 0, 1000
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(f"tcp://{place}")
        # One that is turned away has nowhere to send to.
        with contextlib.suppress(zmq.Again):
            if kind == zmq.DEALER:
                session.send(socket, "connection_request")
                session.send(socket, "kernel_info_request")
                session.send(socket, "execute_request", {"code": CODE, "silent": False})
        got.append(bool(socket.poll(1500)))
        socket.close()
    body = json.dumps({"do": "stop"}).encode()
    for seal in ("", "0" * 64):
        request = urllib.request.Request(
            f"http://{place}/", data=body, headers={"Authorization": seal})
        try:
            got.append(urllib.request.urlopen(request, timeout=1).status == 200)
        except Exception:
            got.append(False)
    answers[place] = got

threads = [threading.Thread(target=attempt, args=(place,)) for place in sys.argv[1:]]
[each.start() for each in threads]
[each.join() for each in threads]
print(json.dumps(answers))
"""
# Subscribes at ports without sending anything, and prints what it has received.
LISTEN = """
import sys, zmq
poller, heard = zmq.Poller(), b""
for place in sys.argv[1:]:
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.LINGER = 0
    socket.subscribe(b"")
    socket.connect(f"tcp://{place}")
    poller.register(socket, zmq.POLLIN)
print("listening", flush=True)
poller.register(sys.stdin.fileno(), zmq.POLLIN)
while sys.stdin.fileno() not in (ready := dict(poller.poll())):
    for socket in ready:
        heard += b"".join(socket.recv_multipart())
print(heard.hex())
"""


FRAMEWORKS = """
import torch, torch.distributed as dist, horovod.torch as hvd, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
hvd.init()
hvd.allreduce(torch.ones(1))
"""
# Sends what a gRPC client sends first: torch's store waits for more, a guarded port hangs up.
KNOCK = """
import json, socket, sys
answers = {}
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    answers[place] = False
    try:
        with socket.create_connection((host, int(port)), 5) as door:
            door.settimeout(2)
            try:
                door.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
                answers[place] = door.recv(1) != b""
            except TimeoutError:
                answers[place] = True
    except OSError:
        pass
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def job(machines: Machines) -> Iterator[JobPython]:
    """Two ranks of alice's on two nodes, with the ports that frameworks open, and a home that all
    may enter."""
    machines.home("alice").chmod(0o755)
    with JobPython(machines, "alice", "--nodes=2", "--ntasks-per-node=1") as job:
        job.do(
            "from cells import finish, values\nfrom rankroom.cluster.local import Cluster\n"
            "cluster = Cluster.local()\nvalues(cluster, 'rank')"
        )
        job.do(f"frameworks = finish(cluster, {FRAMEWORKS!r})")
        assert job.do("frameworks.state") == "done"
        yield job
        assert job.do("values(cluster, 'rank')") == [0, 1]
        job.do("cluster.stop()")
    machines.home("alice").chmod(0o700)


def ports(machines: Machines, node: str, user: str) -> list[tuple[str, str]]:
    """The addresses and ports at which the user's processes listen on a node.

    Without srun, which listens for the nodes and has Slurm's own authentication.
    """
    found = []
    for line in machines.run(node, ["ss", "-Hltnep"]).splitlines():
        if f"uid:{machines.id(user)}" in line and '"srun"' not in line:
            address, _, port = line.split()[3].rpartition(":")
            found.append((address.strip("[]").removeprefix("::ffff:"), port))
    return found


def rank_ports(machines: Machines, node: str) -> list[tuple[str, str]]:
    """Where alice's ranks listen on a node, without the ports of ipyparallel and Rankroom."""
    pids = machines.run(node, ["pgrep", "-u", "alice", "-f", "rankroom.agent.node_agent"]).split()
    found = []
    for line in machines.run(node, ["ss", "-Hltnp"]).splitlines():
        if any(f"pid={pid}," in line for pid in pids) and '"srun"' not in line:
            address, _, port = line.split()[3].rpartition(":")
            found.append((address.strip("[]").removeprefix("::ffff:"), port))
    return found


def test_processes_listen_only_on_the_address_of_their_node(machines: Machines, job: JobPython):
    listening = {node: ports(machines, node, "alice") for node in ("c1", "c2")}
    assert len(listening["c1"]) > 5
    for node, places in listening.items():
        assert {address for address, _ in places} == {machines.address(node)}


@pytest.mark.parametrize("place", ["c1", "c2", "c3", "login"])
def test_framework_ports_refuse_other_users_except_from_other_nodes_of_the_job(
    machines: Machines, job: JobPython, place: str
):
    script = machines.put("bob", "knock.py", KNOCK)
    reached = {
        node: [f"{address}:{port}" for address, port in rank_ports(machines, node)]
        for node in ("c1", "c2")
    }
    assert {node: len(each) > 1 for node, each in reached.items()} == {"c1": True, "c2": True}, (
        reached
    )
    tried = [
        each for node, places in reached.items() for each in places if {place, node} != {"c1", "c2"}
    ]
    said = machines.run(place, [PYTHON, script, *tried], "bob")
    assert json.loads(said.splitlines()[-1]) == dict.fromkeys(tried, False)
    if place in reached:
        # These are the right ports: root, whom the guard admits, is answered.
        said = machines.run(place, [PYTHON, script.with_name("knock.py"), *reached[place]], "root")
        assert True in json.loads(said.splitlines()[-1]).values()


def test_a_note_names_framework_ports_open_to_the_other_nodes(machines: Machines, job: JobPython):
    notes = job.do("frameworks.info.notes")
    for framework in ("torch.distributed", "tf.distribute"):
        [note] = [each for each in notes if f"connect to the ports of {framework}" in each]
        assert "on the other nodes" in note


@pytest.mark.parametrize("place", ["c1", "c2", "login"])
def test_no_port_answers_a_stranger(machines: Machines, job: JobPython, place: str):
    script = machines.put("bob", "try.py", TRY)
    reached = [
        f"{address}:{port}"
        for node in ("c1", "c2")
        for address, port in ports(machines, node, "alice")
        if node == place or address != "127.0.0.1"
        # These are open between the nodes of the job, and data sent there can end a rank.
        if {node, place} != {"c1", "c2"} or (address, port) not in rank_ports(machines, node)
    ]
    assert len(reached) > 3
    said = machines.run(place, [PYTHON, script, *reached], "bob")
    assert json.loads(said.splitlines()[-1]) == {each: [False] * 4 for each in reached}
    for node in ("c1", "c2"):
        assert "stranger" not in machines.run(node, ["ls", "/tmp"])


def test_another_user_of_the_node_receives_no_output_of_ranks(machines: Machines):
    script = machines.put("bob", "listen.py", LISTEN)
    with JobPython(machines, "alice", "--nodelist=c3", "--ntasks=2") as job:
        job.do(
            "from cells import values\nfrom rankroom.cluster.local import Cluster\n"
            "cluster = Cluster.local()\nvalues(cluster, 'rank')"
        )
        places = [":".join(each) for each in ports(machines, "c3", "alice")]
        # On one node, loopback is enough; but bob is on the node, too.
        assert len(places) > 5 and all(each.startswith("127.0.0.1:") for each in places)
        with machines.start(
            "c3", [PYTHON, script, *places], "bob", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listening\n"
            # A subscription takes effect after an unknown delay.
            for _ in range(20):
                job.do("cluster.run('print(\"a secret\"); import time; time.sleep(0.1)').wait(60)")
            heard = bytes.fromhex(listener.communicate("\n", timeout=60)[0])
        job.do("cluster.stop()")
    assert b"a secret" not in heard and b"IDS|MSG" not in heard


def test_the_owner_can_connect_and_another_user_cannot(machines: Machines, job: JobPython):
    # The ports answer a user who can read the connection files, so a refusal means something.
    file = "/home/alice/.local/share/rankroom/clusters/*/ipp/security/ipcontroller-client.json"
    code = (
        f"import glob, ipyparallel; [file] = glob.glob({file!r}); "
        "print(ipyparallel.Client(file, timeout=20).ids)"
    )
    assert machines.run("c2", [PYTHON, "-c", code], "alice").splitlines()[-1] == "[0, 1]"
    denied = machines.run("c2", [PYTHON, "-c", code.replace("[file] =", "file =")], "bob")
    assert "[0, 1]" not in denied


def test_another_user_can_read_no_file_of_a_cluster(machines: Machines, job: JobPython):
    folder = cluster_folder(machines, "alice")
    files = [file for file in folder.rglob("*") if file.is_file()]
    names = {file.name for file in files}
    assert {"cluster.json", "ipcontroller-client.json", "ipcontroller-engine.json"} <= names
    home = machines.root / "home"
    for file in (folder, *files):
        path = f"/home/{file.relative_to(home)}"
        said = machines.run("c2", ["sh", "-c", 'cat "$0" || ls "$0"', path], "bob")
        assert "Permission denied" in said, said
    runs = "/home/alice/.local/share/rankroom/runs"
    assert "Permission denied" in machines.run("c2", ["ls", runs], "bob")


def test_no_secret_is_shown_by_ps_or_scontrol(machines: Machines, job: JobPython):
    folder = cluster_folder(machines, "alice")
    secrets = {json.loads((folder / "cluster.json").read_text())["rpc_key"]}
    for name in ("client", "engine"):
        about = json.loads((folder / f"ipp/security/ipcontroller-{name}.json").read_text())
        secrets |= {about["key"], about["curve_serverkey"]}
    secrets.discard("")
    assert len(secrets) >= 2
    shown = ""
    for node in ("c1", "c2"):
        shown += machines.run(node, ["ps", "axeww", "-o", "pid,args"], "bob")
    assert "rankroom.agent.node_agent" in shown
    for what in ("job", "step"):
        shown += machines.run("login", ["scontrol", "show", what, "--details"], "bob")
    assert f"JobId={job.job}" in shown
    for secret in secrets:
        assert secret not in shown
    pid = re.search(r"^ *(\d+) .*rankroom.agent.node_agent", shown, re.MULTILINE)
    assert pid is not None
    environ = machines.run("c1", ["cat", f"/proc/{pid[1]}/environ"], "bob")
    assert "denied" in environ or "No such" in environ
