"""`rankroom run` from a laptop in a job on a site, and inside a job on the nodes granted to it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from labs import CTRL_C, Typed, jobs, make_home, profile, settings
from machines import Machines
from remote import until_nothing_runs

SCRIPT = """
import os, socket, sys, time
rank = int(os.environ["RANK"])
print("on", socket.gethostname(), sys.argv[1:], flush=True)
if "exit" in sys.argv and rank == 1:
    sys.exit(3)
if "wait" in sys.argv:
    time.sleep(1000)
"""
SITES = {"test": profile(nodes=2, ranks_per_node=1)}


class Terminal:
    """A terminal of the laptop."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.home = make_home(machines, machines.root / "home-run", "root", **SITES)

    def typed(self, *words: str) -> Typed:
        """`rankroom run WORDS`, left running in a terminal."""
        return Typed(self.machines, "laptop", "root", self.home, [*words], command=("run",))

    def run(self, *words: str) -> tuple[int, str, str]:
        """The exit status, stdout and stderr of `rankroom WORDS`."""
        argv = ["env", *settings(self.home), sys.executable, "-m", "rankroom", *words]
        process = self.machines.start(
            "laptop", argv, "root", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, said = process.communicate(timeout=300)
        return process.returncode, out, said


@pytest.fixture(scope="module")
def terminal(machines: Machines) -> Iterator[Terminal]:
    machines.put("alice", "train.py", SCRIPT)
    yield Terminal(machines)


def test_a_script_runs_on_the_site_and_is_recorded_locally(machines: Machines, terminal: Terminal):
    status, out, said = terminal.run("run", "--site", "test", "train.py", "--epochs", "3")
    assert status == 0, said
    assert "0 │ on c1 ['--epochs', '3']" in out and "1 │ on c2 ['--epochs', '3']" in out
    assert "2 ranks · done" in said
    until_nothing_runs(machines)
    _, shown, _ = terminal.run("runs", "show", "last")
    assert "on c1" in shown and "on c2" in shown
    machines.until_idle()


@pytest.mark.thorough
def test_the_exit_status_is_that_of_the_first_rank_that_failed(
    machines: Machines, terminal: Terminal
):
    status, _, said = terminal.run("run", "--site", "test", "train.py", "exit")
    assert status == 3 and "failed on rank 1" in said, said
    until_nothing_runs(machines)
    machines.until_idle()


@pytest.mark.thorough
def test_a_script_that_is_not_there_is_named(machines: Machines, terminal: Terminal):
    status, _, said = terminal.run("run", "--site", "test", "trian.py")
    assert status == 1 and "there is no file trian.py on c" in said, said
    assert "Traceback" not in said
    until_nothing_runs(machines)
    machines.until_idle()


def test_an_interrupt_ends_the_ranks_and_their_job(machines: Machines, terminal: Terminal):
    with terminal.typed("--site", "test", "train.py", "wait") as typed:
        typed.until("│ on c")
        typed.type(CTRL_C)
        typed.until("press Ctrl-C again")
        assert typed.ended() == 130
    until_nothing_runs(machines)
    machines.until_idle()


def test_an_interrupt_during_the_wait_in_the_queue_cancels_the_job(
    machines: Machines, terminal: Terminal
):
    machines.run("ctl", ["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
    try:
        with terminal.typed("--site", "test", "train.py") as typed:
            typed.until("is waiting in the queue")
            typed.type(CTRL_C)
            assert typed.ended() == 130
        until_nothing_runs(machines)
        assert jobs(machines) == []
    finally:
        machines.run("ctl", ["scontrol", "update", "PartitionName=gpu", "State=UP"])


def test_a_run_inside_a_job_uses_the_nodes_granted_to_it(machines: Machines, terminal: Terminal):
    lines = ["--nodes=2", "--ntasks-per-node=1", "--time=10", "--output=run.log"]
    command = f"{sys.executable} -m rankroom run train.py exit"
    script = ["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), command, "echo status $?", ""]
    path = machines.put("alice", "run.sh", "\n".join(script))
    machines.run("login", ["sbatch", path], "alice")
    log = machines.home("alice") / "run.log"
    deadline = time.monotonic() + 120
    while not log.exists() or "status " not in log.read_text():
        assert time.monotonic() < deadline, log.exists() and log.read_text()
        time.sleep(0.2)
    said = log.read_text()
    assert "0 │ on c" in said and "1 │ on c" in said and "status 3" in said, said
    until_nothing_runs(machines)
