"""Peers that connect to a supervisor without a key, or violate its protocol.

The current run goes on, and error messages are one line at most.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from numbered import GATED, assert_numbered, written
from rankroom.cluster import actions
from rankroom.cluster.local import Cluster
from rankroom.errors import NoClusterError, RankroomError, StartError
from rankroom.record.cluster_file import VERSION
from rankroom.rpc.client import ask, connected
from rankroom.rpc.server import HANDSHAKE_TIMEOUT_MS, MAX_PART_BYTES
from rankroom.system.polling import poll_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("{id} at a supervisor's connection", "a run goes on; one line at most"),
]

USUAL = 1024  # a process's default limit on file descriptors, on most systems
THOUSAND = 1000
# ZMTP 3.1: a greeting that announces CURVE, then the first command, of 200 bytes or of 1 GiB.
GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
HELLO = b"\x04" + bytes([200]) + b"\x05HELLO" + b"\0" * 194
GIANT = b"\x06" + struct.pack(">Q", 1 << 30) + b"\x05HELLO"


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks whose supervisor started with the usual limit on file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL, hard), hard))
        try:
            made = Cluster.local(ranks=2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield made
        finally:
            made.stop()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def reach(cluster: Cluster) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(HANDSHAKE_TIMEOUT_MS / 1000 + 25)
    made.connect(cluster.info.rpc.removeprefix("ipc://"))
    return made


def say(*parts: bytes) -> Callable[[Cluster], None]:
    """A peer that sends these parts, and waits until the supervisor closes the connection."""

    def peer(cluster: Cluster) -> None:
        with reach(cluster) as stranger, contextlib.suppress(ConnectionError):
            for part in parts:
                stranger.sendall(part)
            while stranger.recv(1 << 16):
                pass

    return peer


def wrong_key(cluster: Cluster) -> None:
    with pytest.raises(TimeoutError):
        ask(cluster.info.rpc, zmq.curve_keypair()[0].decode(), 2.0, do="stop")


def thousand(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(THOUSAND):
            stack.enter_context(reach(cluster))
        assert ask(cluster.info.rpc, cluster.info.rpc_key, 30, do="alive") == {}


def giant_with_the_key(cluster: Cluster) -> None:
    with connected(cluster.info.rpc, cluster.info.rpc_key) as peer:
        peer.send_multipart([b"1", b'{"do": "alive"}', b"\0" * (MAX_PART_BYTES + 1)])
        assert not peer.poll(2000)


def half_with_the_key(cluster: Cluster) -> None:
    with connected(cluster.info.rpc, cluster.info.rpc_key) as peer:
        peer.send(b"1", zmq.SNDMORE)
        assert not peer.poll(500)


def another_version(cluster: Cluster) -> None:
    for question in ({"do": "teleport"}, {"do": "run", "cell": "1"}):
        with pytest.raises(RankroomError) as told:
            actions._ask(cluster.info, **question)
        assert "\n" not in str(told.value)
    with pytest.raises(
        RankroomError, match="runs another version of Rankroom, which does not know"
    ):
        cluster._ask("teleport")


PEERS = {
    "a wrong key": wrong_key,
    "garbage": say(b"GET / HTTP/1.1\r\n\r\n"),
    "many bytes of garbage": say(os.urandom(1 << 20)),
    "half a greeting": say(GREETING[:20]),
    "half a message": say(GREETING, HELLO[:50]),
    "a first message of the wrong kind": say(GREETING, HELLO),
    "1 GiB announced": say(GREETING, GIANT),
    "too much, with the key": giant_with_the_key,
    "half a message, with the key": half_with_the_key,
    "another version": another_version,
    "a thousand connections": thousand,
}


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_a_run_survives_bad_peers(usual: Cluster, peer: Callable[[Cluster], None], tmp_path: Path):
    process = psutil.Process(usual.refresh().supervisor)
    usual._ask("follow")
    log = usual.paths.supervisor_log.read_text()
    before = process.memory_info().rss
    run = usual.run(GATED.format(gate=str(tmp_path / "gate")))
    peer(usual)
    size = len(written(usual.store, run.id, 0))
    assert poll_until(lambda: len(written(usual.store, run.id, 0)) > size, 30, 0.02)
    (tmp_path / "gate").touch()
    assert run.wait(60) and run.state == "done"
    for rank, text in run.results.items():
        assert_numbered(usual.store, run.id, rank, int(text.strip("'").split()[0]))
    assert usual.refresh().supervisor == process.pid and process.is_running()
    assert process.memory_info().rss < before + 2 * MAX_PART_BYTES
    said = usual.paths.supervisor_log.read_text().removeprefix(log)
    # The client gets the error of a failed request; its traceback is in the log.
    assert len([line for line in said.splitlines() if not line.startswith(" ")]) <= 3, said


def test_a_cluster_of_a_newer_version_is_refused(usual: Cluster):
    info = usual.refresh()
    usual.paths.write(type(info)(**{**vars(info), "version": VERSION + 1}))
    try:
        with pytest.raises(NoClusterError, match="was started by another version of Rankroom"):
            Cluster.attach(usual.name)
    finally:
        usual.paths.write(info)


@pytest.mark.thorough
@pytest.mark.fault(
    "a supervisor stands still for longer than it is waited for",
    "one line says so; what was asked meanwhile is not done later, and it goes on",
)
def test_requests_to_a_suspended_supervisor_time_out_without_effect(usual: Cluster, tmp_path: Path):
    run = usual.run(GATED.format(gate=str(tmp_path / "gate")))
    with stopped(usual):
        with pytest.raises(RankroomError, match="did not answer within 10 s") as told:
            actions.interrupt(usual.name)
        assert "\n" not in str(told.value)
        assert run.state == "running" and usual.running
    (tmp_path / "gate").touch()
    assert run.wait(60) and run.state == "done", run.info
    for rank, text in run.results.items():
        assert_numbered(usual.store, run.id, rank, int(text.strip("'").split()[0]))
    with stopped(usual):
        with pytest.raises(StartError, match="did not answer within 30 s") as told:
            usual.run("never = 1")
        assert "\n" not in str(told.value)
    again = usual.run("'never' in globals()")
    assert again.wait(60) and again.results == {0: "False", 1: "False"}


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    supervisor = cluster.refresh().supervisor
    tasks = Path(f"/proc/{supervisor}/task")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        # On a busy machine, a request could be received before the process stops.
        assert poll_until(lambda: all(_stands(each) for each in tasks.iterdir()), 30, 0.01)
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


def _stands(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
