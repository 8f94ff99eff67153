"""The PBS job that this process runs in: what was granted, read from its node file and qstat."""

from __future__ import annotations

from collections.abc import Mapping

from rankroom.errors import SchedulerError, StartError
from rankroom.record.cluster_file import Node
from rankroom.scheduler import pbs


def ask(job: str) -> list[str]:
    """Return the command that reports what a job was granted."""
    return [*pbs.ENV, "qstat", "-f", "-F", "json", job]


def read(
    said: str, job: str, node_file: str, here: tuple[int, int]
) -> tuple[list[Node], list[int], float]:
    """Return its nodes, the processes requested on each, and when its time is over (epoch seconds).

    `here` is the number of GPUs and cores of this node: the other nodes are assumed to be like it
    if PBS does not say, as at sites that grant whole nodes. Raises StartError if the job does not
    run, or its node file is empty.
    """
    number = job.partition(".")[0]
    try:
        status = pbs.listed(said).get(number)
    except SchedulerError as error:
        raise StartError(str(error)) from None
    if status is None or status.state != "running":
        state = status.words if status else "is unknown to qstat"
        raise StartError(NOT_RUNNING.format(job=job, state=state))
    # One line per process; a name with its domain is the same node.
    names = [line.partition(".")[0] for line in node_file.split()]
    if not names:
        raise StartError(NO_NODES.format(job=job))
    granted = _granted(pbs.details(said, number).get("exec_vnode", ""))
    has_told = any(gpus for gpus, _ in granted.values())  # else they are taken to be like this one
    nodes = []
    for name in dict.fromkeys(names):
        gpus, cores = granted.get(name, (0, 0))
        nodes.append(Node(name, 0, gpus if has_told else here[0], cores or here[1]))
    return nodes, [names.count(node.name) for node in nodes], status.until


def _granted(vnodes: str) -> Mapping[str, tuple[int, int]]:
    """Count GPUs and cores by node in `(x1:ncpus=64:ngpus=4)+(x2[0]:ncpus=4+x2[1]:ncpus=4)`."""
    found: dict[str, tuple[int, int]] = {}
    for part in vnodes.replace("(", "").replace(")", "").split("+"):
        name, *rest = part.split(":")
        # A node may be split into vnodes.
        node = name.partition("[")[0].partition(".")[0]
        given = dict(each.split("=", 1) for each in rest if "=" in each)
        gpus, cores = found.get(node, (0, 0))
        found[node] = (gpus + int(given.get("ngpus", 0)), cores + int(given.get("ncpus", 0)))
    return found


NOT_RUNNING = (
    "job {job} (PBS_JOBID) is not running (it {state}): start a new one, or unset PBS_JOBID to "
    "start ranks on this machine"
)
NO_NODES = (
    "the file that PBS_NODEFILE names lists no nodes of job {job}: it is on the job's first node "
    "only. Start the notebook there, or unset PBS_JOBID to start ranks on this machine"
)
