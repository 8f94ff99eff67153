"""The job that this process runs in: what was granted, and how many ranks each node gets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankroom.errors import StartError, UsageError
from rankroom.record.cluster_file import Allocation, Node
from rankroom.scheduler import pbs_job
from rankroom.scheduler.job_end import UTC_VARIABLES, end_time, field, own_lines
from rankroom.system import control_groups

COMMAND_TIMEOUT_S = 20.0  # every Slurm command waits 9 s when the controller is down
# `Nodes=c[1-2] CPU_IDs=0-3 Mem=400 GRES=gpu:a100:2(IDX:0-1)`, once for a group of like nodes.
_NODES_PATTERN = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=\S+(?: GRES(?:_IDX)?=(\S*))?")
# The count is a separate field: a type may begin with a digit, like `2080ti` or `1g.10gb`.
_GPUS_PATTERN = re.compile(r"\bgpu(?::[^\s:,()]+)?:(\d+)(?=[,(\s]|$)")
_INDICES = re.compile(r"\bgpu(?::[^\s:,()]+)?\(IDX:([\d,-]+)\)")  # before Slurm 20.11
_LIST_PART_PATTERN = re.compile(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)")
_TASKS_PATTERN = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def granted(
    ranks: int | None, env: Mapping[str, str], devices: Callable[[], int] = lambda: 0
) -> Allocation | None:
    """Return the allocation that this process runs in, with `ranks` placed; None outside of one.

    `devices` counts this node's GPUs. Raises StartError if the job does not run or the scheduler
    does not say what it granted, UsageError if `ranks` is less than 1.
    """
    if job := env.get("SLURM_JOB_ID", ""):
        words = ["env", *UTC_VARIABLES, "scontrol", "show", "job", "--details", "--oneliner", job]
        said = own_lines(_ask(words, job), job)
        if (state := field(said, "JobState")) != "RUNNING":
            raise StartError(NOT_RUNNING.format(job=job, state=state.lower().replace("_", " ")))
        return read(said, job, ranks, tasks(env.get("SLURM_TASKS_PER_NODE", "")))
    if job := env.get("PBS_JOBID", ""):
        said = _ask(pbs_job.ask(job), job, "PBS")
        here = (devices(), control_groups.cores())
        return read_pbs(said, job, ranks, _text(env.get("PBS_NODEFILE", "")), here)
    return None


def read(said: str, job: str, ranks: int | None, per_node: Sequence[int]) -> Allocation:
    """Return the allocation described by `scontrol show job --details`. Raises StartError."""
    found = [
        Node(name, 0, _gpus(gres or ""), len(expand(f"cpu[{cpus}]")))
        for names, cpus, gres in _NODES_PATTERN.findall(said)
        for name in expand(names)
    ]
    if not found:
        raise StartError(UNREADABLE.format(job=job, said=said.strip()[:2000]))
    return Allocation(job, _with_ranks(found, ranks, per_node), end_time(said))


def read_pbs(
    said: str, job: str, ranks: int | None, node_file: str, here: tuple[int, int]
) -> Allocation:
    """Return what `qstat -f` and the job's node file describe; `here` as in `pbs_job.read`."""
    nodes, asked, until = pbs_job.read(said, job, node_file, here)
    return Allocation(job.partition(".")[0], _with_ranks(nodes, ranks, asked), until, "pbs")


def _with_ranks(
    nodes: Sequence[Node], ranks: int | None, per_node: Sequence[int]
) -> tuple[Node, ...]:
    """Return the nodes that get ranks: `ranks` in all, else one per GPU, else one per task."""
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks {ranks}: a cluster needs at least 1 rank")
    if ranks is not None:
        counts = _spread(ranks, _room(nodes, per_node))
    elif all(node.devices for node in nodes):
        counts = [node.devices for node in nodes]
    else:
        counts = list(per_node) if len(per_node) == len(nodes) else [1] * len(nodes)
    shared = (replace(node, ranks=count) for node, count in zip(nodes, counts, strict=True))
    return tuple(node for node in shared if node.ranks)


def _room(nodes: Sequence[Node], per_node: Sequence[int]) -> list[int]:
    """Return how many ranks each node has a GPU for or, without GPUs, a task; 0 if that is not
    known."""
    devices = [node.devices for node in nodes]
    known = list(per_node) if len(per_node) == len(nodes) else [0] * len(nodes)
    return devices if any(devices) else known


def _spread(ranks: int, room: Sequence[int]) -> list[int]:
    """Return how many of `ranks` each node gets: as full as the others, in proportion."""
    counts = [0] * len(room)
    for _ in range(ranks):
        at = min(range(len(room)), key=lambda i: (counts[i] >= room[i], counts[i] / (room[i] or 1)))
        counts[at] += 1
    return counts


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return ""


def expand(text: str) -> list[str]:
    """Return the nodes that Slurm writes as `c[1-3,7],login`."""
    names: list[str] = []
    for before, inside, after in _LIST_PART_PATTERN.findall(text):
        if not inside:
            names.append(before + after)
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names += expand(f"{before}{number:0{len(first)}}{after}")
    return names


def tasks(text: str) -> list[int]:
    """Return the numbers that Slurm writes as `4(x2),1`."""
    return [int(n) for n, times in _TASKS_PATTERN.findall(text) for _ in range(int(times or 1))]


def _gpus(gres: str) -> int:
    if (indices := _INDICES.search(gres)) is not None:
        return len(expand(f"gpu[{indices[1]}]"))
    return sum(map(int, _GPUS_PATTERN.findall(gres)))


def _ask(argv: Sequence[str], job: str, scheduler: str = "Slurm") -> str:
    about = {"job": job, "scheduler": scheduler, "variable": VARIABLES[scheduler]}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
        code, said = done.returncode, done.stdout
    except FileNotFoundError:
        code, said = 127, ""
    except subprocess.TimeoutExpired as error:
        code, said = 1, str(error)
    if code == 127:
        command = next(word for word in argv if word != "env" and "=" not in word)
        raise StartError(NO_COMMAND.format(command=command, **about))
    if code:
        said = "\n".join(said.rstrip().splitlines()[-20:])
        raise StartError(NO_ANSWER.format(command=" ".join(argv), said=said, **about))
    return said


VARIABLES = {"Slurm": "SLURM_JOB_ID", "PBS": "PBS_JOBID"}
NO_COMMAND = (
    "this is {scheduler} job {job} ({variable}), but `{command}`, which reports what it was "
    "granted, is not found here: load {scheduler}'s module, or unset {variable} to start ranks on "
    "this machine only"
)
NO_ANSWER = (
    "{scheduler} does not say what job {job} ({variable}) was granted; `{command}` said:\n{said}\n"
    "If the job is over, start a new one, or unset {variable} to start ranks on this machine"
)
NOT_RUNNING = (
    "job {job} (SLURM_JOB_ID) is {state}: start a new one, or unset SLURM_JOB_ID to start ranks "
    "on this machine"
)
UNREADABLE = "cannot read which nodes job {job} was granted; Slurm said:\n{said}"
