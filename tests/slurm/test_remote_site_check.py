"""`rankroom site check` from a laptop through the login node: a site that works, and each fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rankroom
from machines import BARE, Machines

Say = Callable[..., str]


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Path]:
    """The folder of the laptop's user, whose connection to the login node all tests here share."""
    folder = machines.root / "laptop-site"
    (folder / "rankroom" / "sites").mkdir(mode=0o700, parents=True)
    yield folder
    ended = f"for each in {folder}/home/ssh/*; do ssh -F none -S $each -O exit x; done"
    machines.run("laptop", ["sh", "-c", ended])


PRETENDED = """#!/bin/sh
# Stands for a Python that has it all: a real one imports every framework.
echo 'rankroom-probe {"python": "3.11.2", "executable": "/pretended", "host": "%s",
"rankroom": "%s", "horovod": "0.28.1", "ours": true, "frameworks": []}' | tr -d '\\n'
"""


@pytest.fixture
def check(machines: Machines, laptop: Path) -> Say:
    """A function that writes a profile and returns the output of its check, without colours."""
    made = machines.put("alice", "python", PRETENDED % ("login", rankroom.__version__))

    def run(
        *options: str, top: str = "", job: str = "", environment: str = "", home: str = "home"
    ) -> str:
        lines = [f'login = "login"\nscratch = "~/room"\n{top}'] if "login" not in top else [top]
        lines.append('[job]\npartition = "gpu"\n' if "partition" not in job else "[job]\n")
        lines.append(f"gpus_per_node = 2\n{job}\n[environment]\n")
        lines.append(environment or f'python = "{made}"\n')
        (laptop / "rankroom" / "sites" / "test.toml").write_text("".join(lines))
        settings = [
            f"RANKROOM_SSH=ssh -F {machines.root}/client/ssh_config",
            f"RANKROOM_HOME={laptop}/{home}", f"XDG_CONFIG_HOME={laptop}", "PYTHONPATH=",
        ]  # fmt: skip
        command = [sys.executable, "-m", "rankroom", "site", "check", "test", *options]
        return machines.run("laptop", ["env", *settings, *command], timeout=300)

    return run


def room(machines: Machines) -> list[str]:
    return sorted(file.name for file in (machines.home("alice") / "room").iterdir())


@pytest.mark.thorough
def test_a_working_site_passes_every_check(machines: Machines, check: Say):
    said = check("--job", environment=f'python = "{sys.executable}"\n')
    marks = [line[0] for line in said.splitlines() if line[0] in "✓!✗–"]
    assert len(marks) == 8, said
    assert set(marks) <= {"✓", "!"}, said
    assert "✓ login node: login answers" in said
    assert "✓ scheduler: slurm" in said
    assert "✓ scratch: /home/alice/room can be written to" in said
    assert f"✓ Python with Rankroom: {rankroom.__version__}" in said
    assert "ran on c" in said
    # Nothing of the job is left.
    assert room(machines) == []
    assert machines.queue("login", ["squeue", "-h", "-t", "PD,R"], "alice") == ""


@pytest.mark.parametrize(
    ("job", "said", "remedy"),
    [
        ('partition = "gpuu"', "invalid partition specified: gpuu", "(it is: gpuu)"),
        ('partition = "staff"', "not permitted to use this partition", "You may not use"),
        ('constraint = "a100"', "Invalid feature specification", "Set `constraint`"),
        (
            "nodes = 1\ncpus_per_task = 99",
            "node configuration is not available",
            "No node satisfies",
        ),
    ],
)
def test_a_refused_job_fails_the_check(check: Say, laptop: Path, job: str, said: str, remedy: str):
    found = check(job=job)
    assert "✗ account and partition: test: `sbatch --test-only` on login failed" in found
    assert said in found
    assert remedy in found
    # Steps that do not depend on it are still checked.
    assert "✓ Python with Rankroom" in found


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ('time = "02:00:00"', "it asks for 02:00:00, and the partition gpu gives 1:00:00 at most"),
        ('partition = "short"', "it asks for 01:00:00, and the partition short gives 5:00"),
    ],
)
def test_a_job_that_slurm_would_never_start_fails_the_check(check: Say, job: str, said: str):
    found = check(job=job)
    words = "such a job is accepted but would never start"
    assert f"✗ account and partition: {words}: {said}" in found


def test_a_test_job_with_a_wrong_account_is_reported_and_cancelled(machines: Machines, check: Say):
    # Without an accounting database, Slurm notices only when the job should start.
    said = check("--job", job='account = "other"\npartition = "closed"\ntime = "00:05:00"')
    assert "✗ test job: job" in said
    assert "account not known" in said
    assert "as submitted, it will never start. It was cancelled" in said
    assert machines.queue("login", ["squeue", "-h", "-t", "PD,R"], "alice") == ""


def test_a_site_without_rankroom_is_reported_with_the_pip_command(machines: Machines, check: Say):
    bare = machines.put("alice", "bare", BARE)
    said = check(environment=f'python = "{bare}"\n')
    assert "✗ Python with Rankroom: /usr/bin/python3 on login has no Rankroom" in said
    assert f"/usr/bin/python3 -m pip install rankroom-{rankroom.__version__}-py3" in said


def test_a_different_rankroom_version_on_the_site_is_reported(machines: Machines, check: Say):
    package = machines.home("alice") / "old" / "rankroom"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n')
    setup = json.dumps(["export PYTHONPATH=$HOME/old"])
    said = check(environment=f'python = "{sys.executable}"\nsetup = {setup}\n')
    assert (
        f"Rankroom is 0.0.9 for {sys.executable} on login, and {rankroom.__version__} here" in said
    )


def test_a_missing_environment_module_is_reported(check: Say):
    said = check(environment='python = "/home/alice/python"\nmodules = ["cudnn/9"]\n')
    assert "✗ environment: `module load cudnn/9` on login failed" in said
    assert "Correct [environment] of" in said


def test_an_unwritable_scratch_folder_is_reported(check: Say):
    said = check(top='login = "login"\nscratch = "/proc/room"\n')
    assert "✗ scratch: test: `bash -lc" in said
    assert "set it to a folder that you may write to" in said


@pytest.mark.thorough
def test_a_scratch_folder_not_shared_with_compute_nodes_is_reported(machines: Machines, check: Say):
    said = check("--job", top='login = "login"\nscratch = "/tmp/room"\n')
    assert "✓ scratch: /tmp/room can be written to" in said
    assert "log in /tmp/room is missing or empty: the compute node does not see that" in said
    assert machines.run("login", ["ls", "/tmp/room"], "alice") == ""


def test_an_unknown_login_node_is_reported_and_later_steps_are_skipped(check: Say):
    said = check(top='login = "logn"\n')
    assert "✗ login node: cannot reach logn: no machine with this name is found" in said
    assert '– scheduler: skipped, because the step "login node" failed' in said


@pytest.mark.thorough
def test_an_unreachable_login_node_is_reported(machines: Machines, check: Say):
    machines.unplug("login", "campus")
    try:
        # With another home, no connection is open yet.
        said = check(home="another-home")
    finally:
        machines.plug("login", "campus")
    assert "✗ login node: cannot reach login" in said
    assert "check your network or VPN" in said


@pytest.mark.thorough
def test_a_stopped_slurmctld_is_reported_and_other_steps_still_run(machines: Machines, check: Say):
    # By name, but only among the machine's own processes.
    machines.run("ctl", ["pkill", "-x", "slurmctld"])
    try:
        # It saves its state first, and still answers meanwhile.
        machines.until(lambda: not machines.run("ctl", ["pgrep", "-x", "slurmctld"]), "its end")
        said = check()
    finally:
        machines.run("ctl", ["slurmctld"])
        machines.until_idle()
    assert "✗ scheduler: test: `squeue" in said
    assert "Unable to contact slurm controller" in said
    assert "down or being restarted" in said
    assert "✓ Python with Rankroom" in said


@pytest.mark.thorough
def test_a_crashed_slurm_controller_host_is_reported(machines: Machines, check: Say):
    machines.crash("ctl")
    try:
        said = check()
    finally:
        machines.boot("ctl")
        machines.until_idle()
    assert "✗ scheduler: test: `squeue" in said
    # Slurm's own time limit or ours, whichever comes first.
    assert "timed out" in said or "Unable to contact" in said
    assert "✓ Python with Rankroom" in said
