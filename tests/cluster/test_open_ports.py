"""Ports that frameworks open in ranks are closed to other users and to the network."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import another_user
from cells import finish, values
from rankroom import config
from rankroom.cluster.local import Cluster
from rankroom.supervisor.processes import port_guard
from rankroom.system import network

pytestmark = pytest.mark.cluster

# Connects to each port from the given address; "shut" is a port that refuses the connection, or
# closes it without a reply.
KNOCK = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        with socket.create_connection(("127.0.0.1", port), 5, (sys.argv[1], 0)) as door:
            door.settimeout(2)
            try:
                door.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
                print(port, "shut" if door.recv(1) == b"" else "open")
            except TimeoutError:
                print(port, "open")
    except OSError:
        print(port, "shut")
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")


def listening(cluster: Cluster) -> set[tuple[str, int]]:
    """Return the TCP addresses on which the ranks and their child processes listen."""
    found = set()
    for rank in cluster.ranks:
        process = psutil.Process(rank.pid)
        for each in (process, *process.children(recursive=True)):
            for port in each.net_connections("tcp"):
                if port.status == psutil.CONN_LISTEN:
                    found.add((port.laddr.ip, port.laddr.port))
    return found


def own_addresses() -> list[str]:
    """Return the addresses of this machine from which a program can connect to loopback."""
    return sorted({*network.interfaces().values(), "127.0.0.9"})


def knock(ports: list[int], uid: int, source: str = "127.0.0.1") -> dict[int, str]:
    said = another_user.run(KNOCK, source, *map(str, ports), uid=uid)
    lines = [line.split() for line in said.splitlines()]
    return {int(port): how for port, how in lines}


STORE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
stores = [
    dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False, use_libuv=way)
    for way in (True, False)
]
ports = {store.port for store in stores}
total = torch.ones(1); dist.all_reduce(total); ports
"""
STRATEGY = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers = strategy.cluster_resolver.cluster_spec().as_dict()["worker"]
{int(workers[rank].split(":")[1])}
"""
# These use the ports again, which must work after another user has tried to connect.
STORED = """
for way, store in zip((True, False), stores):
    guest = dist.TCPStore("127.0.0.1", store.port, 1, False, use_libuv=way)
    guest.set("key", "value")
    assert store.get("key") == b"value"
dist.barrier()
"""
REDUCED = """
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(1)))
assert float(total[0]) == 2.0
"""
SERVER = """
import tensorflow as tf
server = tf.distribute.Server.create_local_server()
{int(server.target.rpartition(":")[2])}
"""
SERVED = """
with (graph := tf.Graph()).as_default():
    two = tf.constant(1) + 1
with tf.compat.v1.Session(server.target, graph=graph) as session:
    assert session.run(two) == 2
"""
DEEPSPEED = """
import deepspeed, psutil
def doors():
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
before = doors()
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
doors() - before
"""
DEEPSPED = """
import torch
deepspeed.comm.all_reduce(total := torch.ones(1))
assert float(total) == 2.0
"""
OWN = """
import contextlib, socket, threading
doors = [socket.socket(family) for family in (socket.AF_INET, socket.AF_INET6)]
doors[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
for door, every in zip(doors, ("0.0.0.0", "::")):
    door.bind((every, 0)); door.listen()
unbound = socket.socket(); unbound.listen()
def serve(door):
    while True:
        with contextlib.suppress(OSError):  # a stranger's is cut off already
            door.accept()[0].sendall(b"come in")
for each in (*doors, unbound):
    threading.Thread(target=serve, args=(each,), daemon=True).start()
{door.getsockname()[1] for door in (*doors, unbound)}
"""


@pytest.mark.parametrize(
    ("source", "again"),
    [
        (STORE, STORED),
        pytest.param(STRATEGY, REDUCED, marks=pytest.mark.thorough),
        pytest.param(SERVER, SERVED, marks=pytest.mark.thorough),
        pytest.param(DEEPSPEED, DEEPSPED, marks=pytest.mark.thorough),  # its import takes minutes
        (OWN, "rank"),
    ],
    ids=["torch.distributed", "tf.distribute", "TensorFlow's server", "DeepSpeed", "its own"],
)
@needs_root
def test_ports_of_ranks_are_closed_to_other_users(home: Path, source: str, again: str):
    cluster = Cluster.local(ranks=2)
    try:
        run = finish(cluster, source, 300)  # on a busy machine, DeepSpeed's import takes minutes
        assert run.state == "done", run.info.failure
        assert run.info.notes == []
        found = listening(cluster)
        loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert {address for address, _ in found} <= loopback
        ports = sorted({port for _, port in found})
        assert len(ports) > 1
        for address in own_addresses() * 2:
            answers = knock(ports, another_user.UID, address)
            assert [port for port, how in answers.items() if how == "open"] == [], address
        own = sorted(set().union(*map(ast.literal_eval, run.results.values())))
        assert own
        assert set(own) <= set(ports)
        assert "open" in knock(own, 0).values()
        assert finish(cluster, again).state == "done"
        assert finish(cluster, "rank").results == {0: "0", 1: "1"}
    finally:
        cluster.stop()


MEETING = """
import horovod.torch as hvd, torch
for _ in range(30):
    hvd.init()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == 3
    hvd.shutdown()
"""
# Connects to each port that the given user opens, stays connected, and prints what it received.
MEET = """
import select, socket, sys, threading
LISTEN = "0A"
def listening():
    found = set()
    for name in ("tcp", "tcp6"):
        for line in open("/proc/net/" + name).readlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and int(words[7]) == int(sys.argv[1]):
                found.add(int(words[1].rpartition(":")[2], 16))
    return found
known, reached, heard = listening(), {}, b""
print("here", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    now = listening()
    for port in now - known:
        try:
            door = socket.create_connection(("127.0.0.1", port), 1)
            door.sendall(bytes(64))
            reached[door] = port
        except OSError:
            pass
    known = now
for door in reached:
    door.settimeout(0.2)
    try:
        heard += door.recv(100)
    except OSError:
        pass
print(len(reached), heard)
"""


@pytest.mark.alone  # it connects to every port that this user opens
@needs_root
def test_horovod_starts_although_another_user_connects_to_its_ports(home: Path):
    cluster = Cluster.local(ranks=3)
    with another_user.start(MEET, str(os.geteuid())) as stranger:
        try:
            assert stranger.stdout is not None and stranger.stdout.readline() == "here\n"
            run = finish(cluster, MEETING)
            assert run.state == "done", run.info.failure
            said, _ = stranger.communicate("over\n", timeout=60)
            reached, heard = said.strip().split(" ", 1)
            assert int(reached) > 0
            # One of the ports is the rendezvous, which closes others' connections without a reply.
            assert heard == "b''"
        finally:
            cluster.stop()


def test_a_cell_can_open_a_port_for_others(home: Path):
    cluster = Cluster.local(ranks=1)
    try:
        source = (
            "import os, socket\ndel os.environ['RANKROOM_BIND']\n"
            "door = socket.socket(); door.bind(('', 0)); door.getsockname()[0]"
        )
        assert values(cluster, source) == ["0.0.0.0"]
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    "without", ["a compiler", pytest.param("one that works", marks=pytest.mark.thorough)]
)
def test_without_the_port_guard_a_run_notes_that_ports_are_open(
    home: Path, monkeypatch: pytest.MonkeyPatch, without: str
):
    monkeypatch.setenv("CC", "/no/such/cc" if without == "a compiler" else "/bin/true")
    cluster = Cluster.local(ranks=2)
    try:
        run = finish(cluster, "import torch.distributed as d; d.init_process_group('gloo')")
        assert run.state == "done"
        [note] = run.info.notes
        assert "can connect to the ports of torch.distributed" in note
        assert os.environ["CC"] in note
        again = finish(cluster, "d.destroy_process_group(); d.init_process_group('gloo')")
        assert again.info.notes == []
    finally:
        cluster.stop()


def test_the_port_guard_is_compiled_once_and_private_to_its_owner(home: Path):
    made = port_guard.library()
    assert made is not None
    written = made.stat().st_mtime_ns
    assert port_guard.library() == made
    assert made.stat().st_mtime_ns == written
    tried = f"tried-{socket.gethostname()}"
    assert sorted(each.name for each in made.parent.iterdir()) == [made.name, tried]
    for folder in (made.parent, config.home()):
        assert folder.stat().st_mode & 0o077 == 0
    env = port_guard.environment({"LD_PRELOAD": "/usr/lib/other.so"})
    assert env == {"LD_PRELOAD": f"{made}:/usr/lib/other.so"}


SECRET = "0123456789abcdef"
KNOWN = (0x564AB9F2FC4B9D6C).to_bytes(8, sys.byteorder).hex()
# As in NCCL: each rank connects to the first one, sends its address, and closes the connection.
TAKES = """
#include <sys/socket.h>
int take(int door) { return accept(door, 0, 0); }
"""
SAID_AND_GONE = """
import ctypes, os, socket, subprocess, sys, time
take = ctypes.CDLL(sys.argv[1]).take
uid, begin = int(sys.argv[2]), sys.argv[3]
door = socket.create_server(("127.0.0.1", 0))
door.setblocking(False)
with_words = (
    "import os, socket, sys; os.setuid(int(sys.argv[2])); "
    "s = socket.socket(); s.connect(('127.0.0.1', int(sys.argv[1]))); "
    "s.sendall(bytes.fromhex(sys.argv[4]) + b'here'); "
    "print(flush=True); sys.argv[3] == 'stays' and sys.stdin.read()"
)
for stays in ("goes", "stays"):
    with subprocess.Popen(
        [sys.executable, "-c", with_words, str(door.getsockname()[1]), str(uid), stays, begin],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={},
    ) as other:
        other.stdout.readline()
        if stays == "goes":
            other.wait()
        found = take(door.fileno())
        print(stays, os.read(found, 12)[8:].decode() if found >= 0 else "refused")
"""


@needs_root
@pytest.mark.parametrize(
    ("library", "uid", "begin", "said"),
    [
        ("libnccl.so.2", 0, SECRET, "goes here\nstays here\n"),
        # A closed connection of another user is accepted, too, as NCCL checks for its secret;
        ("libnccl.so.2", another_user.UID, SECRET, "goes here\nstays refused\n"),
        # but not if it begins with the number that is in NCCL's source.
        ("libnccl.so.2", another_user.UID, KNOWN, "goes refused\nstays refused\n"),
        ("libnccl.so.2", 0, KNOWN, "goes refused\nstays here\n"),
        ("libother.so", 0, SECRET, "goes refused\nstays here\n"),
    ],
)
def test_nccl_accepts_connections_that_were_closed_before_accept(
    home: Path, tmp_path: Path, library: str, uid: int, begin: str, said: str
):
    (source := tmp_path / "take.c").write_text(TAKES)
    made = tmp_path / library
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    env = {**os.environ, "RANKROOM_BIND": "127.0.0.1", **port_guard.environment({})}
    done = subprocess.run(
        [sys.executable, "-c", SAID_AND_GONE, made, str(uid), begin],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (said, "")


def test_sockets_other_than_tcp_are_left_alone(home: Path, tmp_path: Path):
    source = (
        "import socket, sys\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 0))\n"
        "assert u.getsockname()[0] == '0.0.0.0'\n"
        "f = socket.socket(socket.AF_UNIX); f.bind(sys.argv[1]); f.listen()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1])\n"
        "f.accept()[0].close()\n"
        "d = socket.socket(); d.setblocking(False); d.bind(('127.0.0.1', 0)); d.listen()\n"
        "try:\n    d.accept()\nexcept BlockingIOError:\n    print('as ever')\n"
    )
    env = {**os.environ, "RANKROOM_BIND": "127.0.0.1", **port_guard.environment({})}
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "door")],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("as ever\n", "")
