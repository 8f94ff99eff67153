"""A scheduler's information about silent nodes, parsed from recorded output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankroom.record.cluster_file import Allocation, Node
from rankroom.scheduler import silent_nodes
from rankroom.scheduler.silent_nodes import SilentNodes, down, not_granted, without_step
from rankroom.system.polling import poll_until

# Slurm 22.05; newer versions write `+NOT_RESPONDING` instead of the star.
NODES = """\
NodeName=c3 Arch=x86_64 CoresPerSocket=8 NodeHostName=c3 State=ALLOCATED* ThreadsPerCore=1
NodeName=c4 Arch=x86_64 CoresPerSocket=8 NodeHostName=c4 State=DOWN* ThreadsPerCore=1
NodeName=c5 Arch=x86_64 CoresPerSocket=8 NodeHostName=c5 State=DOWN+DRAIN+NOT_RESPONDING
NodeName=c6 Arch=x86_64 CoresPerSocket=8 NodeHostName=c6 State=MIXED+DRAIN NextState=DOWN
"""
GRANTED = Allocation("7", (Node("c3", 2), Node("c4", 2)))
QSTAT = """\
{{"timestamp": 1, "Jobs": {{"7.server": {{"job_state": "{state}", "exec_host": "{hosts}"}}}}}}
"""


def test_a_node_that_does_not_respond_is_not_down():
    assert down(NODES) == {"c4", "c5"}
    assert down("slurm_load_node error: Unable to contact slurm controller") == set()


def test_only_nodes_without_a_listed_agent_step_are_returned():
    assert without_step("agent-c3\nbatch\nagent-c44\n", ["c3", "c4"]) == {"c4"}


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        (QSTAT.format(state="R", hosts="c3/0*4+c4/0*4"), set()),
        (QSTAT.format(state="R", hosts="c3.site.org/0*4"), {"c4"}),
        (QSTAT.format(state="R", hosts="x3000c0s1b0n0/0*4"), None),  # PBS uses other node names
        (QSTAT.format(state="F", hosts=""), {"c4"}),
        ("qstat: cannot connect to server", None),
        ('{"timestamp": 1}', None),
    ],
)
def test_nodes_that_a_pbs_job_no_longer_has_are_found(said: str, gone: set[str] | None):
    assert not_granted(said, GRANTED, ["c4"]) == gone


class Slurm:
    """Fake `scontrol` and `squeue`, which print a file each, or fail if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes, self.steps = folder / "nodes", folder / "steps"
        for name, file in (("scontrol", self.nodes), ("squeue", self.steps)):
            command = folder / name
            command.write_text(f"#!/bin/sh\necho {name} $* >> {folder}/calls\ncat {file}\n")
            command.chmod(0o755)
        self.on()

    def on(self) -> None:
        self.nodes.write_text(NODES.replace("DOWN", "ALLOCATED"))
        self.steps.write_text("agent-c3\nagent-c4\n")

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Slurm(tmp_path)


@pytest.fixture
def ask(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Query Slurm about silent nodes now; return what is known after its reply."""
    made = SilentNodes(GRANTED)

    def ask_now(*nodes: str) -> dict[str, str]:
        before = len(slurm.calls())
        made._due = 0.0
        silent = dict.fromkeys(nodes, 30.0)
        made.over(silent)
        assert poll_until(lambda: len(slurm.calls()) == before + 2, 60, 0.01)
        assert made._asking is not None
        made._asking.join()
        return made.over(silent)

    return ask_now


def test_a_silent_node_is_not_over_while_slurm_lists_its_step(slurm: Slurm, ask):
    assert ask("c3", "c4") == {} and ask("c3", "c4") == {}
    assert slurm.calls()[0] == "scontrol --all show node --oneliner c3,c4"
    assert "--jobs=7" in slurm.calls()[1]


def test_a_node_that_is_down_is_over_at_once(slurm: Slurm, ask):
    slurm.nodes.write_text(NODES)
    assert ask("c3", "c4") == {"c4": "its node c4 has failed"}
    assert ask("c3") == {}


def test_a_node_is_over_after_two_consecutive_answers_without_its_step(slurm: Slurm, ask):
    over = {"c4": "according to the scheduler, its processes on node c4 have ended"}
    slurm.steps.write_text("agent-c3\n")
    assert ask("c3", "c4") == {}
    slurm.on()
    assert ask("c3", "c4") == {}
    slurm.steps.write_text("agent-c3\n")
    assert ask("c3", "c4") == {}
    assert ask("c3", "c4") == over
    # Once c4 has been heard from again, what was known about it no longer counts.
    assert ask("c3") == {} and ask("c3", "c4") == {}
    assert ask("c3", "c4") == over


def test_a_scheduler_that_does_not_answer_ends_nothing(slurm: Slurm, ask):
    for file in (slurm.nodes, slurm.steps):
        file.unlink()
    for _ in range(3):
        assert ask("c3", "c4") == {}


def test_checking_silent_nodes_neither_blocks_nor_repeats_a_pending_query(slurm: Slurm):
    gate = slurm.folder / "gate"
    command = f"#!/bin/sh\necho >> {slurm.folder}/calls\nuntil [ -e {gate} ]; do sleep 0.05; done\n"
    (slurm.folder / "scontrol").write_text(command)
    made = SilentNodes(GRANTED)
    assert made.over({}) == {} and made._asking is None
    for _ in range(100):
        assert made.over({"c4": 30.0}) == {}
    assert made._asking is not None and made._asking.is_alive()
    gate.touch()
    made._asking.join()
    for _ in range(100):
        assert made.over({"c4": 30.0}) == {}
    assert len(slurm.calls()) == 2  # one call of each command: no further query is due


def test_the_query_interval_grows_with_the_length_of_the_silence(slurm: Slurm, monkeypatch):
    made, now = SilentNodes(GRANTED), 1000.0
    monkeypatch.setattr(silent_nodes.time, "monotonic", lambda: now)
    for silent, pause in ((20.0, 10.0), (300.0, 30.0), (86400.0, 60.0)):
        made._ask(["c4"], silent)
        assert made._due == now + pause
    assert made.over({"c4": 86400.0}) == {} and made._asking is None
