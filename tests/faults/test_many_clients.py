"""Clients attach and leave during a run: each follows it, and its record stays complete."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cells import finish
from numbered import GATED, assert_numbered, written
from rankroom.cluster.local import Cluster
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster

CLIENTS, AT_ONCE = 20, 5
# Attaches as a kernel does when its notebook is opened, then ends in one of three ways.
CLIENT = """
import os, signal, sys
from rankroom.cluster.local import Cluster
from rankroom.errors import RankroomError
name, run, end = sys.argv[1:]
made = Cluster.attach(name)
assert made.latest is not None and made.latest.id == run and made.latest.state == "running"
try:
    made.run("1")
except RankroomError as error:
    assert "is busy with a run of another process" in str(error), error
print("follows", flush=True)
sys.stdin.readline()
if end == "closes":
    made.close()
if end == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
ENDS = {"closes": 0, "exits": 0, "is killed": -signal.SIGKILL}


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[ExitStack]:
    """Ends what a test has started, even if the test fails."""
    with ExitStack() as stack:
        yield stack


def start(cluster: Cluster, run: str, end: str, clients: ExitStack) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CLIENT, cluster.name, run, end]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    made = clients.enter_context(subprocess.Popen(words, text=True, **pipes))
    clients.callback(made.kill)
    return made


@pytest.mark.fault("{id}", "each follows it, and no line is missing or twice")
def test_twenty_clients_attach_and_leave_during_a_run(
    cluster: Cluster, clients: ExitStack, tmp_path: Path
):
    supervisor = psutil.Process(cluster.refresh().supervisor)
    before = supervisor.num_fds()
    gate = tmp_path / "gate"
    run = cluster.run(GATED.format(gate=str(gate)))
    clients.callback(gate.touch)
    assert poll_until(lambda: written(cluster.store, run.id, 1).count("\n") > 20, 60, 0.02)
    ends = [list(ENDS)[number % len(ENDS)] for number in range(CLIENTS)]
    for first in range(0, CLIENTS, AT_ONCE):
        size = len(written(cluster.store, run.id, 1))
        group = [
            (start(cluster, run.id, end, clients), end) for end in ends[first : first + AT_ONCE]
        ]
        for client, _ in group:
            assert client.stdout is not None and client.stderr is not None
            assert client.stdout.readline() == "follows\n", client.stderr.read()
        # All clients of the group leave at once.
        together = threading.Barrier(len(group))
        leaving = [threading.Thread(target=leave, args=(each, together)) for each, _ in group]
        for thread in leaving:
            thread.start()
        for (client, end), thread in zip(group, leaving, strict=True):
            thread.join()
            assert client.wait(60) == ENDS[end]
        assert len(written(cluster.store, run.id, 1)) > size and run.state == "running"
    gate.touch()
    assert run.wait(60) and run.state == "done"
    for rank, text in run.results.items():
        assert_numbered(cluster.store, run.id, rank, int(text.strip("'").split()[0]))
    assert run.info.notes == []
    assert supervisor.is_running() and cluster.refresh().supervisor == supervisor.pid
    # The margin allows for open files of a record; each client had more than one connection.
    enough = before + CLIENTS // 2
    assert poll_until(lambda: supervisor.num_fds() < enough, 60, 0.1), "it keeps connections"
    assert finish(cluster, "rank").results == {0: "0", 1: "1"}


def leave(client: subprocess.Popen[str], together: threading.Barrier) -> None:
    together.wait()
    assert client.stdin is not None
    client.stdin.write("\n")
    client.stdin.flush()
