"""A machine whose name resolves to 127.0.1.1, on a network with another machine.

Its ranks reach each other at any of its addresses; other users and machines reach none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import another_user
from odd_machine import Machine
from rankroom.supervisor.processes import port_guard

NETWORK, OUTER, SIX, OTHER = "198.51.100.0/24", "198.51.100.7", "fd00::7", "198.51.100.8"
SETUP = f"""
FOLDER=@
printf '127.0.0.1 localhost\\n127.0.1.1 named\\n' > $FOLDER/hosts
mount --bind $FOLDER/hosts /etc/hosts
ip link set lo up
ip link add outer type veth peer name wire
ip addr add {OUTER}/24 dev outer
ip -6 addr add {SIX}/64 dev outer nodad
ip link set outer up
"""
ADDRESSES = ["named", "127.0.1.1", "0.0.0.0", OUTER, f"::ffff:{OUTER}", SIX, "::1"]


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Machine]:
    setup = SETUP.replace("@", f"'{tmp_path}'")
    about = {"RANKROOM_HOME": str(tmp_path / "home")}
    made = Machine("named", tmp_path, setup=setup, environment=about, network=True)
    try:
        yield made
    finally:
        made.crash()


@pytest.fixture
def other(named: Machine, tmp_path: Path) -> Iterator[Machine]:
    """Another machine on the same network."""
    made = Machine("other", tmp_path, setup="ip link set lo up", network=True)
    enter = ["nsenter", "-t", named._first, "-n"]
    try:
        subprocess.run([*enter, "ip", "link", "set", "wire", "netns", made._first], check=True)
        made.run("ip", "addr", "add", f"{OTHER}/24", "dev", "wire")
        made.run("ip", "link", "set", "wire", "up")
        yield made
    finally:
        made.crash()


# Hides inet_diag, so that socket owners are read from /proc/net.
UNTOLD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
int socket(int family, int kind, int protocol) {
    int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    if (family == 16 && protocol == 4) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    return real(family, kind, protocol);
}
"""


@pytest.fixture
def guard(home: Path) -> dict[str, str]:
    """The port guard's environment in the ranks of a cluster on one machine."""
    env = port_guard.environment({})
    assert "LD_PRELOAD" in env
    return env | {port_guard.BIND: "127.0.0.1", port_guard.PEERS: ""}


@pytest.fixture
def without_diag(guard: dict[str, str], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "untold.c").write_text(UNTOLD)
    made = tmp_path / "untold.so"
    argv = ["cc", "-shared", "-fPIC", "-o", made, tmp_path / "untold.c", "-ldl"]
    subprocess.run(argv, check=True)
    return guard | {"LD_PRELOAD": f"{guard['LD_PRELOAD']}:{made}"}


# Prints the addresses at which each listener is reached. Blocking and non-blocking connects must
# agree.
REACH = """
import errno, json, select, socket, struct, sys
def door(family, every, only=0, port=0):
    made = socket.socket(family)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    made.bind((every, port))
    made.listen()
    made.settimeout(5)
    return made
def reach(door, address, waits):
    family, *_, place = socket.getaddrinfo(
        address, door.getsockname()[1], type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as caller:
        # Python's own socket with a time-out does not wait in connect().
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        caller.setblocking(waits)
        if caller.connect_ex(place) not in (0, errno.EINPROGRESS):
            return False
        if select.select([], [caller], [], 0.5)[1] and not caller.getsockopt(
                socket.SOL_SOCKET, socket.SO_ERROR):
            caller.sendall(b"x")
            with door.accept()[0] as taken:
                return taken.recv(1) == b"x"
    return False
found = {}
for name, made in {
    "4": door(socket.AF_INET, "0.0.0.0"), "both": door(socket.AF_INET6, "::"),
    "6": door(socket.AF_INET6, "::", 1), "one": door(socket.AF_INET, "127.0.0.9"),
}.items():
    with made:
        found[name] = [each for each in sys.argv[1:] if reach(made, each, True)]
        assert found[name] == [each for each in sys.argv[1:] if reach(made, each, False)]
print(json.dumps(found))
"""
ELSEWHERE = "198.51.100.99"  # no machine has this address


@pytest.mark.parametrize("how", ["guard", "without_diag"])
def test_a_wildcard_listener_is_reached_at_all_addresses_of_the_machine(
    named: Machine, request: pytest.FixtureRequest, how: str
):
    env = request.getfixturevalue(how)
    said = named.run(sys.executable, "-c", REACH, *ADDRESSES, ELSEWHERE, **env).stdout
    found = json.loads(said)
    assert found["4"] == found["both"] == ADDRESSES
    assert found["6"] == [SIX, "::1"]
    assert found["one"] == []


# A listener on the exact address is preferred, but not if it belongs to another user.
PREFERS = """
import socket, sys
def door(address, port=0):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen()
    made.settimeout(5)
    return made
every = door("")
port = every.getsockname()[1]
one = door("127.0.1.1", port)
with socket.create_connection(("127.0.1.1", port)):
    one.accept()
print("ready", port, flush=True)
sys.stdin.readline()
with socket.create_connection((sys.argv[1], port)):
    every.accept()
print("ours")
"""
LISTENS = """
import socket, sys
door = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
sys.stdin.readline()
"""


def test_a_users_own_listener_is_preferred_to_another_users_on_the_same_port(
    named: Machine, guard: dict[str, str]
):
    as_stranger = [f"--reuid={another_user.UID}", f"--regid={another_user.UID}", "--clear-groups"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        named._words([sys.executable, "-c", PREFERS, OUTER]), env=named.environment | guard, **pipes
    ) as ours:
        word, port = ours.stdout.readline().split()
        assert word == "ready"
        argv = ["setpriv", *as_stranger, "/usr/bin/python3", "-c", LISTENS, OUTER, port]
        with subprocess.Popen(named._words(argv), env={}, **pipes) as theirs:
            assert theirs.stdout.readline() == "listens\n"
            assert ours.communicate("\n", timeout=60)[0] == "ours\n"
            theirs.communicate("\n", timeout=60)


RUNS = """
import json, rankroom
cluster = rankroom.Cluster.attach()
run = cluster.run(SOURCE)
run.wait(200)
print(json.dumps([run.state, run.results, str(run.info.failure), run.info.notes]))
"""
MEET = f"""
import os, socket, subprocess, sys
import torch, torch.distributed as dist
def reduced():
    dist.all_reduce(total := torch.ones(1))
    dist.destroy_process_group()
    return int(total)
totals = []
for address in (socket.gethostname(), "{OUTER}"):
    os.environ["MASTER_ADDR"] = address
    dist.init_process_group("gloo")
    totals.append(reduced())
dist.init_process_group("gloo", init_method="tcp://{OUTER}:23456", rank=rank, world_size=2)
totals.append(reduced())
# The user's own wiring, which Rankroom does not touch.
store = dist.TCPStore(socket.gethostname(), 23457, 2, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
totals.append(reduced())
if rank == 0:
    script = "import torch.distributed as d; d.init_process_group('gloo')"
    file = os.path.join(os.environ["RANKROOM_HOME"], "script.py")
    open(file, "w").write(script)
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run([*argv, "--local-addr={OUTER}", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
totals
"""
# torch.distributed.rpc listens on the host name's address; each rank opens one more socket.
OPEN = f"""
import contextlib, os, socket, threading
import psutil, torch.distributed.rpc as rpc
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23458"}}
def listening():
    found = psutil.Process().net_connections("tcp")
    return {{(each.laddr.ip, each.laddr.port) for each in found if each.status == "LISTEN"}}
before = listening()
rpc.init_rpc(f"rank{{rank}}", rank=rank, world_size=2)
of_rpc = sorted(listening() - before)
door = socket.socket()
door.bind(("{OUTER}", 24000 + rank))
door.listen()
def serve():
    while True:
        with contextlib.suppress(OSError):
            door.accept()[0].sendall(b"come in")
threading.Thread(target=serve, daemon=True).start()
of_rpc
"""
KNOCK = """
import socket, sys
for source in sys.argv[3:]:
    try:
        door = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5, (source, 0))
        print(source, "open" if door.recv(7) else "shut")
    except OSError:
        print(source, "shut")
"""


def run_cell(machine: Machine, source: str) -> tuple[str, dict[str, str], str, list[str]]:
    state, results, failure, notes = machine.do(f"SOURCE = {source!r}\n{RUNS}")  # type: ignore[misc]
    return state, results, failure, notes


def knock(machine: Machine, uid: int, port: int, *sources: str) -> list[str]:
    """Whether a connection to the machine's network address is open or shut, for each source."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    argv = [*become, "/usr/bin/python3", "-c", KNOCK, OUTER, port, *sources]
    return [line.split()[1] for line in machine.run(*map(str, argv)).stdout.splitlines()]


@pytest.mark.cluster
def test_ranks_connect_at_the_name_of_their_machine_and_others_are_refused(
    named: Machine, other: Machine
):
    named.rankroom("cluster", "start", "--ranks", "2")
    state, results, failure, notes = run_cell(named, MEET)
    assert (state, notes) == ("done", []), failure
    assert set(results.values()) == {"[2, 2, 2, 2]"}
    state, results, failure, notes = run_cell(named, OPEN)
    assert (state, notes) == ("done", []), failure
    for found in results.values():
        assert found != "[]" and OUTER not in found and "127.0.1.1" not in found
    for port in (24000, 24001):
        # Another user of the machine may connect from any of its addresses.
        own = ["127.0.0.1", "127.0.0.9", OUTER]
        assert knock(named, another_user.UID, port, *own) == ["shut"] * 3
        assert knock(other, 0, port, OTHER) == ["shut"]
        assert knock(named, 0, port, *own) == ["open"] * 3
    named.rankroom("cluster", "stop")
