"""Nodes of a job that are silent: what the job's scheduler says about them.

From here, a node that is cut off looks like one that has failed. Only the scheduler knows whether
what ran there is over, so it is queried from time to time while a node is silent.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from rankroom.errors import SchedulerError
from rankroom.record.cluster_file import Allocation
from rankroom.scheduler import pbs, pbs_job, slurm
from rankroom.scheduler.job_end import field
from rankroom.scheduler.step_launcher import step_name

COMMAND_TIMEOUT_S = 20.0  # every Slurm command waits 9 s when the controller is down
MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 10.0, 60.0  # between two queries
POLL_INTERVAL_FRACTION = 0.1  # of the time that a node has been silent, between two queries


class SilentNodes:
    """The silent nodes of an allocation; its scheduler is queried in a thread of its own."""

    def __init__(self, granted: Allocation) -> None:
        self._granted = granted
        self._lock = threading.Lock()  # for the next two
        self._over: dict[str, str] = {}
        self._unlisted: set[str] = set()  # nodes on which the last answer listed nothing of ours
        self._due = float("-inf")
        self._asking: threading.Thread | None = None

    def over(self, silent: Mapping[str, float]) -> dict[str, str]:
        """Return why ranks are over according to the scheduler, by node; query it if that is due.

        Call it often, with the seconds that each node has been `silent`; it does not block.
        """
        with self._lock:
            # A node that has been heard from again starts over.
            self._over = over = {n: why for n, why in self._over.items() if n in silent}
            self._unlisted &= silent.keys()
        is_asking = self._asking is not None and self._asking.is_alive()
        if silent and not is_asking and time.monotonic() >= self._due:
            longest = max(silent.values())
            self._asking = threading.Thread(
                target=self._ask, args=(sorted(silent), longest), name="rankroom-silent-nodes",
                daemon=True,
            )  # fmt: skip
            with contextlib.suppress(RuntimeError):  # no thread can be started: try next time
                self._asking.start()
        return over

    def _ask(self, nodes: Sequence[str], longest: float) -> None:
        ask = _of_pbs if self._granted.scheduler == "pbs" else _of_slurm
        try:
            failed, unlisted = ask(self._granted, nodes)
        finally:
            self._due = time.monotonic() + min(
                MAX_POLL_INTERVAL_S, max(MIN_POLL_INTERVAL_S, POLL_INTERVAL_FRACTION * longest)
            )
        over = dict.fromkeys(failed, FAILED)
        with self._lock:
            if unlisted is not None:
                # One list without a node is not enough to end what runs there.
                over = dict.fromkeys(unlisted & self._unlisted, UNLISTED) | over
                self._unlisted = unlisted
            self._over = {node: why.format(node=node) for node, why in over.items()}


def _of_slurm(granted: Allocation, nodes: Sequence[str]) -> tuple[set[str], set[str] | None]:
    """Return the nodes that have failed according to Slurm, and those on which it lists no step of
    ours; None for these if it does not answer."""
    about = _said(["scontrol", "--all", "show", "node", "--oneliner", ",".join(nodes)]) or ""
    asks = ["squeue", "--steps", "--all", "--noheader", f"--jobs={granted.job}", "--format=%j"]
    steps = _said([*slurm.ENV, *asks])
    return down(about), None if steps is None else without_step(steps, nodes)


def down(said: str) -> set[str]:
    """Return the nodes that are down, from the output of `scontrol show node`.

    A node that merely does not respond (`ALLOCATED*`) is not: Slurm itself still waits for it.
    """
    lines = [line for line in said.splitlines() if field(line, "State").startswith("DOWN")]
    return {field(line, "NodeName") for line in lines}


def without_step(said: str, nodes: Collection[str]) -> set[str]:
    """Return those of `nodes` whose agent's step is not in a list of the names of a job's steps."""
    names = {line.strip() for line in said.splitlines()}
    return {node for node in nodes if step_name(node) not in names}


def _of_pbs(granted: Allocation, nodes: Sequence[str]) -> tuple[set[str], set[str] | None]:
    """Return no failed nodes, and those that the job no longer has; None for these if PBS does not
    answer. That PBS reports a node as down, as soon as it does not hear from it, proves nothing."""
    said = _said(pbs_job.ask(granted.job))
    return set(), None if said is None else not_granted(said, granted, nodes)


def not_granted(said: str, granted: Allocation, nodes: Collection[str]) -> set[str] | None:
    """Return those of `nodes` that a job no longer has, by `qstat -f`; None if that is unknown."""
    try:
        status = pbs.listed(said).get(granted.job)
    except SchedulerError:
        return None
    if status is None:
        return None
    if status.state == "ended":
        return set(nodes)
    listed = {name.partition(".")[0] for name in status.nodes.split(",")}
    # The names in the output may differ from those in the node file.
    if not listed & {node.name for node in granted.nodes}:
        return None
    return set(nodes) - listed


def _said(argv: Sequence[str]) -> str | None:
    """Run a scheduler's command and return its output; None if it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


FAILED = "its node {node} has failed"
UNLISTED = "according to the scheduler, its processes on node {node} have ended"
