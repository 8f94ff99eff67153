"""A node's agent: imports once what its ranks need, forks them, watches them, ends them.

`python -m rankroom.agent.node_agent FOLDER MARK NODE DEVICES MODULE…` is started by the cluster's
supervisor, on its own machine or as a task of a job on another node. They exchange lines of JSON
over its stdin and stdout. It has one thread, no ZeroMQ context, and queries only the load of GPUs,
so that its children are equivalent to processes that were started on their own. They end when it
ends; it ends, with all that they have started, when its supervisor is gone.

What a rank has started remains a descendant of the rank while that lives, and of the agent after
that, even if processes in between have ended, and whatever they did to sessions and environments.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

from rankroom.agent import forking
from rankroom.agent.memory import Memory
from rankroom.agent.node_ranks import NodeRanks
from rankroom.record.cluster_file import ClusterPaths
from rankroom.reporting.samples import Sampler
from rankroom.system import gpus, process_tree, shared_memory

RESTART_END_TIMEOUT_S = 1.0  # timeout for a rank that is restarted to end, before it is killed
STOP_TIMEOUT_S = 3.0  # the same for all ranks when the agent ends
HEARTBEAT_PERIOD_S = 2.0  # between two heartbeats, if the supervisor is on another machine
# Without a message of the supervisor, and between checks whether it is gone.
SILENCE_TIMEOUT_S = 60.0
PAUSED_S = 6.0  # without a turn, though each heartbeat makes one due: this process was suspended
SAMPLE_S = 1.0  # between two samples of the ranks' memory
FIRST_S = 0.3  # duration of a first measurement of the ranks' load
LATELY_S = 10.0  # a measurement older than this is not continued by the next one
LONGEST = 1 << 20  # bytes that are read at once


def main(argv: list[str]) -> None:
    """Import the modules that `argv` names, and serve until the supervisor disconnects."""
    # By `--signal` in a user's job, Slurm warns all of its steps: that is for ranks to handle.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    folder, mark, node, devices, *modules = argv[1:]
    process_tree.adopt_orphans()
    supervisor = Supervisor()
    paths = ClusterPaths(Path(folder).name, Path(folder).parent)
    info = paths.read_patiently()
    if info is None:
        raise SystemExit(f"no cluster.json in {folder}: is the folder on a shared file system?")
    # Launchers and containers set a working directory of their own, and ipyparallel keeps the one
    # in which it was imported.
    with contextlib.suppress(OSError):
        os.chdir(info.cwd)
    end_leftovers(mark)
    ranks = NodeRanks(info, paths, int(node), int(devices))
    forks = modules != [forking.NO_PRELOAD]
    if forks:
        import_all(supervisor, ranks, modules)
    agent = NodeAgent(supervisor, ranks, mark, forks)
    if refused := agent.memory.refuses(len(ranks.ranks)):
        supervisor.tell(refused=refused)
        return
    supervisor.tell(ready=True, **ranks.place)
    agent.serve()


def import_all(supervisor: Supervisor, ranks: NodeRanks, modules: list[str]) -> None:
    """Import what all ranks share. A module with which this process must not fork is left out, by
    executing this program again without it."""
    supervisor.tell(doing="imports the rank's engine")
    begun = dict(os.environ)
    first = ranks.environment(ranks.ranks[0], 0)
    first.pop(gpus.VISIBLE, None)  # may be the first rank's only; each rank gets its own later
    os.environ.update(first)
    forking.prepare()
    left_out = set()
    for name in modules:
        supervisor.tell(doing=f"imports {name}")
        failed = forking.imports(name)
        unsafe = forking.why_unsafe()  # even if it failed: it may have started a thread before
        if not failed and not unsafe:
            supervisor.tell(imported=name)
            continue
        left_out.add(name)
        words = FAILED.format(module=name, why=failed)
        supervisor.tell(note=words if failed else LEFT_OUT.format(module=name, why=unsafe))
        if unsafe:
            supervisor.hand_back()
            argv = sys.orig_argv[1 : len(sys.orig_argv) - len(modules)]
            others = [each for each in modules if each not in left_out]
            # With the first rank's environment, it would count as a process of that rank.
            os.execve(sys.executable, [sys.executable, *argv, *others], begun)
    gc.collect()
    gc.freeze()  # the pages of all present objects stay shared with the ranks


def end_leftovers(mark: str) -> None:
    """End what an earlier agent of this node left, which was killed, or cut off for long."""
    place = mark.rpartition("/")[0]
    process_tree.end(
        process
        for process, other in process_tree.belonging(process_tree.AGENT_MARK)
        if other != mark and other.rpartition("/")[0] == place
    )


class Supervisor:
    """The connection to the supervisor, in place of this process's stdin and stdout."""

    def __init__(self) -> None:
        self.orders, self._answers = os.dup(0), os.dup(1)
        # What modules print and read must not get into it.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._read = b""

    def tell(self, **words: Any) -> None:
        left = json.dumps(words).encode() + b"\n"
        while left:
            left = left[os.write(self._answers, left) :]

    def read(self) -> list[dict[str, Any]] | None:
        """Return the orders that have arrived; None when there will be no more."""
        data = os.read(self.orders, LONGEST)
        if not data:
            return None
        *lines, self._read = (self._read + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def hand_back(self) -> None:
        """Restore stdin and stdout, for the program that replaces this one."""
        os.dup2(self.orders, 0)
        os.dup2(self._answers, 1)

    def close(self) -> None:
        os.close(self.orders)
        os.close(self._answers)


class NodeAgent:
    """The parent of a node's ranks."""

    def __init__(self, supervisor: Supervisor, ranks: NodeRanks, mark: str, forks: bool) -> None:
        self.supervisor = supervisor
        self.ranks = ranks
        self.mark = mark
        self.forks = forks
        self.memory = Memory()
        self.children: dict[int, tuple[int, int]] = {}  # by pid: rank and number of the start
        self._ended: set[int] = set()  # pids of ranks that are gone
        # What imported modules have started belongs to all ranks.
        self._helpers = set(psutil.Process().children())
        self._told_to_end = False
        self._samplers: dict[int, Sampler] = {}  # by pid
        self._looked = float("-inf")
        # When the supervisor was last heard from, and when the last turn of the loop began.
        self._heard = self._turned = time.monotonic()
        self._asked = float("-inf")  # when it was last checked whether a silent supervisor is gone
        # By name: when a pending task is due.
        self._due: dict[str, float] = {}

    def serve(self) -> None:
        """Carry out the supervisor's orders, and report how ranks ended, until it is gone."""
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._note_told_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        if self.ranks.is_remote:
            self._due["beat"] = time.monotonic()
        # The supervisor may disconnect while a report is written.
        with contextlib.suppress(BrokenPipeError), selectors.DefaultSelector() as self._selector:
            self._selector.register(self.supervisor.orders, selectors.EVENT_READ)
            self._selector.register(self._woken, selectors.EVENT_READ)
            while not self._told_to_end:
                ready = {key.fileobj for key, _ in self._selector.select(self._pause())}
                if self._woken in ready:
                    self._woken.recv(4096)
                    self.reap()
                if self.supervisor.orders in ready:
                    orders = self.supervisor.read()
                    if orders is None:
                        break
                    self._heard = time.monotonic()
                    for order in orders:
                        self.take(order)
                if self.ranks.is_remote and self.is_abandoned():
                    break
                self.do_due()
        self.end_all()

    def is_abandoned(self) -> bool:
        """Return whether the supervisor is known to be gone, or has been silent for as long as a
        cluster may stay unused; to be called in each turn.

        A silent supervisor may be cut off, or this node may be: the ranks go on.
        """
        now = time.monotonic()
        missed, self._turned = now - self._turned, now
        if missed > PAUSED_S:  # this process itself was suspended, with its job, and heard nothing
            self._heard = min(now, self._heard + missed)
        silence = now - self._heard
        if silence <= SILENCE_TIMEOUT_S or now - self._asked <= SILENCE_TIMEOUT_S:
            return False
        self._asked = now
        return silence > max(SILENCE_TIMEOUT_S, self.ranks.lease_s) or self.ranks.are_over()

    def take(self, order: dict[str, Any]) -> None:
        """Carry out one order of the supervisor."""
        do = order["do"]
        if do == "wire":
            del order["do"]
            self.ranks.wire(**order)
        elif do == "start":
            self.start(order["rank"], order["start"])
        elif do == "signal":
            for pid in self.processes(order["ranks"]):
                os.kill(pid, getattr(signal, order["signal"]))  # the pid is ours until it is reaped
            self.supervisor.tell(signalled=order["number"])
        elif do == "end":
            self.end(order["ranks"])
        elif do == "look":
            self.look()

    def processes(self, ranks: Collection[int]) -> list[int]:
        return [pid for pid, (rank, _) in self.children.items() if rank in ranks]

    # -- starting and ending ranks

    def start(self, rank: int, start: int) -> None:
        """Start a rank: a fork of this process, or a program of its own."""
        env = self.ranks.environment(rank, start)
        agent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            self.supervisor.tell(rank=rank, start=start, failed=str(error))
            return
        if pid == 0:
            try:
                self._selector.close()
                for each in (self.supervisor, self._waking, self._woken):
                    each.close()
                forking.become_rank(
                    agent, rank, env, self.ranks.options(rank), self.ranks.log(rank), self.forks
                )
            finally:
                os._exit(1)
        self.children[pid] = rank, start
        self._due.setdefault("sample", time.monotonic() + SAMPLE_S)
        self.supervisor.tell(rank=rank, start=start, pid=pid)

    def reap(self) -> None:
        """Report each rank that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid not in self.children:
                continue
            rank, start = self.children.pop(pid)
            self._ended.add(pid)
            self._samplers.pop(pid, None)
            code = os.waitstatus_to_exitcode(status)
            words = self.memory.words(rank)
            killed = words if code == -signal.SIGKILL else ""
            if code == -signal.SIGBUS:
                killed = shared_memory.words()
            self.supervisor.tell(rank=rank, start=start, ended=code, words=killed)

    def end(self, ranks: Collection[int]) -> None:
        """End ranks with all they started, in whatever session that is."""
        pids = self.processes(ranks)
        children = process_tree.descendants(pids)
        process_tree.end([psutil.Process(pid) for pid in pids], RESTART_END_TIMEOUT_S)
        spools = {self.ranks.spool(rank) for rank in ranks}
        for process, spool in process_tree.belonging(process_tree.SPOOL_MARK):
            if spool in spools:
                children.add(process)
        process_tree.end(children | self.orphans(pids))
        self.reap()

    def orphans(self, ended: Collection[int]) -> set[psutil.Process]:
        """Return the processes that ended ranks left, including the ranks with the pids `ended`,
        and all descendants of these processes.

        This process adopts the orphans of all ranks. Those of a rank are in its session or have its
        mark. One that has neither may be of any rank: it is left alone while one lives.
        """
        sessions = self.children.keys() - ended  # those may not have been reaped yet
        spools = {self.ranks.spool(self.children[pid][0]) for pid in sessions}
        gone = {*self._ended, *ended}
        left = set()
        for each in set(psutil.Process().children()) - self._helpers:
            if each.pid in self.children:
                continue
            try:
                session, spool = (
                    os.getsid(each.pid),
                    each.environ().get(process_tree.SPOOL_MARK, ""),
                )
            except (OSError, psutil.Error):  # it is just ending, or may not be inspected
                continue
            is_of_living = session in sessions or spool in spools
            if not is_of_living and (spool or session in gone or not sessions):
                left.add(each)
        return left | process_tree.descendants(each.pid for each in left)

    def end_all(self) -> None:
        """End all ranks, and what they started."""
        left = process_tree.descendants([os.getpid()])
        for process, mark in process_tree.belonging(process_tree.AGENT_MARK):
            if mark == self.mark:
                left.add(process)
        process_tree.end(left, STOP_TIMEOUT_S)
        # What they have started meanwhile is a descendant of this process by now.
        process_tree.end(process_tree.descendants([os.getpid()]))

    def _note_told_to_end(self, number: int, frame: Any) -> None:
        self._told_to_end = True

    # -- what is due

    def _pause(self) -> float | None:
        """Return the seconds until something is due; None if nothing is."""
        if not self._due:
            return None
        return max(0.0, min(self._due.values()) - time.monotonic())

    def do_due(self) -> None:
        now = time.monotonic()
        for what in [each for each, at in self._due.items() if at <= now]:
            del self._due[what]
            if what == "beat":
                self.supervisor.tell(beat=True)
                self._due["beat"] = now + HEARTBEAT_PERIOD_S
            elif what == "sample" and self.children:
                self.memory.sample({rank: pid for pid, (rank, _) in self.children.items()})
                self._due["sample"] = now + SAMPLE_S
            elif what == "look":
                self.tell_load()

    def look(self) -> None:
        """Schedule a report of the ranks' load: at once, or after a first measurement."""
        now = time.monotonic()
        if now - self._looked > LATELY_S:
            self._samplers.clear()
        new = self.children.keys() - self._samplers.keys()
        for pid in new:
            self._samplers[pid] = Sampler(self.ranks.device(self.children[pid][0]), pid)
            self._samplers[pid].start()
        self._due["look"] = now + (FIRST_S if new else 0.0)

    def tell_load(self) -> None:
        self._looked = time.monotonic()
        loads = {
            self.children[pid][0]: {"gpu": None, "gpu_memory": None} | sampler.sample()
            for pid, sampler in self._samplers.items()
        }
        self.supervisor.tell(loads=loads)


FAILED = "{module} could not be preloaded: {why}"
LEFT_OUT = (
    "{module} is not preloaded, as a process that has imported it cannot be forked safely: {why}"
)

if __name__ == "__main__":
    main(sys.argv)
