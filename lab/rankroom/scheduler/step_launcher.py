"""A node's agent in an allocation: the command that starts it there, and what its end means.

It is one task in a step of its own, started by Slurm's `srun` or, in a PBS job, by `mpiexec`. Both
forward standard input and output, and pass their environment on to the agent.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankroom.record.cluster_file import Allocation, tail
from rankroom.scheduler.job_end import why_cancelled
from rankroom.system import python_command

# The variables of Slurm that identify the job, and the cluster among several; the others would be
# taken for options of this step.
_JOB_VARIABLES = (
    "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SLURM_JOB_",
    "SLURM_JOBID", "SLURM_SUBMIT_",
)  # fmt: skip
# How a job requested its GPUs, if not per node; newer versions use one variable for all that each
# task gets.
_GPU_VARIABLES_NOT_PER_NODE = ("SLURM_GPUS", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK")
_PER_TASK_VARIABLE = "SLURM_TRES_PER_TASK"
AGENT_MODULE = "rankroom.agent.node_agent"
PYTHON_VARIABLE = "RANKROOM_RANK_PYTHON"  # a command line; set in jobs of sites with a container
_SIGNAL_STATUS_BASE = 128
_FAILED = re.compile(r"Node failure on (\S+)", re.IGNORECASE)


def command(granted: Allocation, node: str, cwd: str, about: Sequence[str]) -> list[str]:
    """Return the command that starts the agent of `node`; `about` are the agent's arguments."""
    remote = python_command.command(AGENT_MODULE, *about, python=python(os.environ))
    if granted.scheduler == "pbs":
        # The options of HPE's PALS; unbound, ranks have all cores of their node, and do not share
        # one.
        place = ["-n", "1", "--ppn", "1", "--hosts", node, "--cpu-bind", "none"]
        return ["mpiexec", *place, *remote]
    return [
        "srun", f"--jobid={granted.job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1",
        *_gpus(granted, node, os.environ),
        # It has all that the job has on the node; else it would wait for the step before it.
        "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none",
        f"--job-name={step_name(node)}", f"--chdir={cwd}", "--export=ALL",
        *remote,
    ]  # fmt: skip


def _gpus(granted: Allocation, node: str, own: Mapping[str, str]) -> list[str]:
    """Return the option for the GPUs of `node`, if the job requested them in total or per task.

    By default a step requests what its job did, in the same way: as many as the whole job has, or
    those of one task. If the job requested them per node, that is all that it has there, of any
    type, and no option may be given: it would leave out what else the job requested.
    """
    by_node = not any(each in own for each in _GPU_VARIABLES_NOT_PER_NODE) and "gpu" not in own.get(
        _PER_TASK_VARIABLE, ""
    )
    devices = next((each.devices for each in granted.nodes if each.name == node), 0)
    return [] if by_node or not devices else [f"--gres=gpu:{devices}"]


def step_name(node: str) -> str:
    """Return the name of the step of the agent of `node`."""
    return f"agent-{node}"


def python(own: Mapping[str, str]) -> list[str]:
    """Return the command that runs Python on a node: ours, or the one in the site's container."""
    return shlex.split(own.get(PYTHON_VARIABLE, "")) or [sys.executable]


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for `command`, from this process's own."""
    return {
        name: value
        for name, value in own.items()
        if not name.startswith(("SLURM_", "SRUN_", "SLURMD_")) or name.startswith(_JOB_VARIABLES)
    }


def returncode(code: int) -> int:
    """Return the agent's own return code from srun's; negative for a signal."""
    named = {each.value for each in signal.Signals}
    return -(code - _SIGNAL_STATUS_BASE) if code - _SIGNAL_STATUS_BASE in named else code


def failed_node(log: Path) -> str:
    """Return the node that has failed according to Slurm; empty if there is none."""
    failed = _FAILED.search(tail(log, 8))
    return failed[1] if failed else ""


def how_ended(how: str, log: Path, node: str, job: str) -> str:
    """Return how what ran on `node` ended, in words: `how` its process did, and Slurm's reason."""
    said = tail(log, 8)
    if failed := failed_node(log):
        return f"{how} (node {failed} has failed)"
    if over := why_cancelled(said, job):
        return f"was ended: {over}"
    if "oom-kill" in said or "Out Of Memory" in said:
        return f"{how} (out of memory on {node}: the job has no more there)"
    return how
