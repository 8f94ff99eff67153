"""Nodes of a job of which nothing is heard: what the job's scheduler says of them.

A node that is cut off looks from here like one that has failed. Only the scheduler knows whether
what ran there is over, so it is asked, now and then, while a node is silent.
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

ASK_S = 20.0  # every command of Slurm's waits 9 s when its controller is down
OFTEN_S, SELDOM_S = 10.0, 60.0  # between two questions
PART = 0.1  # of the time that a node has been silent, between two questions


class SilentNodes:
    """The silent nodes of an allocation; its scheduler is asked in a thread of its own."""

    def __init__(self, granted: Allocation) -> None:
        self._granted = granted
        self._lock = threading.Lock()  # of the next two
        self._over: dict[str, str] = {}
        self._unlisted: set[str] = set()  # nodes on which the answer before listed nothing of ours
        self._due = float("-inf")
        self._asking: threading.Thread | None = None

    def over(self, silent: Mapping[str, float]) -> dict[str, str]:
        """Why ranks are over, as the scheduler says, by node; it is asked again if that is due.

        To be called often, with how many seconds each node has been `silent`; it waits for nothing.
        """
        with self._lock:
            # A node that was heard of again begins from the beginning.
            self._over = over = {n: why for n, why in self._over.items() if n in silent}
            self._unlisted &= silent.keys()
        is_asking = self._asking is not None and self._asking.is_alive()
        if silent and not is_asking and time.monotonic() >= self._due:
            longest = max(silent.values())
            self._asking = threading.Thread(
                target=self._ask, args=(sorted(silent), longest), name="rankroom-silent-nodes",
                daemon=True,
            )  # fmt: skip
            with contextlib.suppress(RuntimeError):  # no thread can be started: the next look
                self._asking.start()
        return over

    def _ask(self, nodes: Sequence[str], longest: float) -> None:
        ask = _of_pbs if self._granted.scheduler == "pbs" else _of_slurm
        try:
            failed, unlisted = ask(self._granted, nodes)
        finally:
            self._due = time.monotonic() + min(SELDOM_S, max(OFTEN_S, PART * longest))
        over = dict.fromkeys(failed, FAILED)
        with self._lock:
            if unlisted is not None:
                # One list that lacks it is not enough to end what runs.
                over = dict.fromkeys(unlisted & self._unlisted, UNLISTED) | over
                self._unlisted = unlisted
            self._over = {node: why.format(node=node) for node, why in over.items()}


def _of_slurm(granted: Allocation, nodes: Sequence[str]) -> tuple[set[str], set[str] | None]:
    """The nodes that Slurm says have failed, and those on which it lists no step of ours; None
    where it does not answer."""
    about = _said(["scontrol", "show", "node", "--oneliner", ",".join(nodes)]) or ""
    asks = ["squeue", "--steps", "--all", "--noheader", f"--jobs={granted.job}", "--format=%j"]
    steps = _said([*slurm.ENV, *asks])
    return down(about), None if steps is None else without_step(steps, nodes)


def down(said: str) -> set[str]:
    """The nodes that are down, by what `scontrol show node` says.

    One that only does not respond (`ALLOCATED*`) is not: Slurm itself goes on waiting for it.
    """
    lines = [line for line in said.splitlines() if field(line, "State").startswith("DOWN")]
    return {field(line, "NodeName") for line in lines}


def without_step(said: str, nodes: Collection[str]) -> set[str]:
    """Those of these nodes whose agent's step is not in a list of a job's steps by name."""
    names = {line.strip() for line in said.splitlines()}
    return {node for node in nodes if step_name(node) not in names}


def _of_pbs(granted: Allocation, nodes: Sequence[str]) -> tuple[set[str], set[str] | None]:
    """The same of PBS. That a node is down, it says as soon as it does not hear of it: what counts
    is that the job is over, or has that node no more."""
    said = _said(pbs_job.ask(granted.job))
    return set(), None if said is None else not_granted(said, granted, nodes)


def not_granted(said: str, granted: Allocation, nodes: Collection[str]) -> set[str] | None:
    """Those of these nodes that a job does not have any more, by what `qstat -f` says; None if
    that cannot be told."""
    try:
        status = pbs.listed(said).get(granted.job)
    except SchedulerError:
        return None
    if status is None:
        return None
    if status.state == "ended":
        return set(nodes)
    listed = {name.partition(".")[0] for name in status.nodes.split(",")}
    # The names in its answer need not be those of the node file.
    if not listed & {node.name for node in granted.nodes}:
        return None
    return set(nodes) - listed


def _said(argv: Sequence[str]) -> str | None:
    """What a scheduler's command answers; None if it does not."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", timeout=ASK_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


FAILED = "its node {node} has failed"
UNLISTED = "what ran on its node {node} is over, as the scheduler says"
