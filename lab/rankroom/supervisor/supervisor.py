"""The process that owns a cluster: starts its controller and its nodes' agents, and watches them.

It belongs to no kernel, so ranks outlive the notebook that started them.
`python -m rankroom.supervisor.supervisor FOLDER` is started by `rankroom.cluster.launch`; it does
what its cluster.json asks and writes the outcome there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rankroom import config
from rankroom.errors import UNKNOWN_REQUEST, RankroomError, file_error
from rankroom.record.claim import claim
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, with_log
from rankroom.rpc.server import Question, Server
from rankroom.scheduler.job_end import JobEnd
from rankroom.scheduler.silent_nodes import SilentNodes
from rankroom.supervisor.debug_relay import DebugRelay
from rankroom.supervisor.lease import Lease
from rankroom.supervisor.news import News
from rankroom.supervisor.processes import hub, preload, start_limit
from rankroom.supervisor.processes.agent_process import (
    FOR_RESTART,
    GIVEN_UP,
    NOT_STARTED,
    AgentProcess,
)
from rankroom.supervisor.processes.cluster_processes import Processes
from rankroom.supervisor.processes.load import Loads
from rankroom.supervisor.processes.restarts import Restarts
from rankroom.supervisor.rank_connections import RankConnections, Silence
from rankroom.supervisor.rendezvous import Rendezvous
from rankroom.supervisor.requests import Requests
from rankroom.supervisor.runs import Runs
from rankroom.system.exits import describe_exit
from rankroom.system.socket_owner import is_ours

WATCH_INTERVAL_S = 0.1
UNREGISTER_TIMEOUT_S = 1.0  # timeout for the controller to unregister ranks that have ended
# Per rank: minimum interval between two saves while ranks become ready.
MIN_SAVE_INTERVAL_PER_RANK_S = 1e-4
HEARTBEAT_PERIOD_S = 2.0  # between two heartbeats to agents on other machines
MAX_EXPECTED_CLIENTS = 2000  # simultaneous client connections: more than are ever expected


class Supervisor:
    """The owner of one cluster: its controller and agents, which are child processes, and ranks."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, devices: int) -> None:
        self.stopping = threading.Event()
        self.told_to_end = False  # by SIGTERM, which Slurm sends at the end of a job
        # First: what follows may compile something, or wait for a file system.
        signal.signal(signal.SIGTERM, self.end_soon)
        self.paths = paths
        self.info = info
        self.claim = claim(paths, info)
        self.children = Processes(paths, info, devices, self.wake)
        self.lost: dict[int, str] = {}  # ranks that were given up, and why
        self.job_end: JobEnd | None = None
        self.silent_nodes: SilentNodes | None = None
        self.last_heartbeat = self.saved = 0.0
        # Shared with the server's thread, in which requests arrive.
        self.ready: set[int] = set()
        self.restarts = Restarts(info, self.children, self.ready)
        self.changed = False  # there are unsaved changes: the watch loop saves them
        is_wide = info.allocation is not None or bool(info.reached_from)
        by_address = is_wide or may_run_out(info.size)
        self.server = Server(self.children.address if by_address else "", paths.folder, self.take)
        self.rendezvous = Rendezvous(
            self.children.address, self.server.later,
            lambda peer, here: is_ours(peer, here, self.children.addresses()),
        )  # fmt: skip
        self.connections = RankConnections(self.server, self.children.signal)
        self.debug = DebugRelay(self.server, self.connections)
        self.runs = Runs(
            paths, info, self.server, self.connections, self.children.places,
            self.note_run,
        )  # fmt: skip
        self.news = News(info, self.server)
        self.requests = Requests(
            lambda: info.size, self.runs.starting, self.runs.demand_idle, self.connections,
            Loads(self.children.look), paths.spool,
        )  # fmt: skip
        self.imported: set[str] = set()  # modules that were preloaded or have been noted for it
        info.rpc, info.rpc_key = self.server.address, self.server.key
        info.lease = config.lease_hours()
        self.lease = Lease(paths.folder, info.lease * 3600)
        # Wakes the watch loop at once: when a child ends, or a thread calls `wake`.
        self.waking, self.woken = socket.socketpair()
        self.waking.setblocking(False)
        self.woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.waking.fileno(), warn_on_full_buffer=False)
        # Agents read cluster.json when they start.
        self.write()
        self.children.start_controller()
        self.children.start_agents(preload.modules(info.preload))
        if info.allocation is not None:
            self.job_end = JobEnd(info.allocation.job, info.allocation.until)
            self.job_end.start_polling()
            self.silent_nodes = SilentNodes(info.allocation)

    def end_soon(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: end the cluster."""
        self.told_to_end = True
        self.stopping.set()

    def save(self) -> None:
        """Write cluster.json; if that fails, as on a full disk, the watch loop tries again."""
        try:
            self.write()
        except OSError:
            self.changed = True

    def write(self) -> None:
        """Write cluster.json. Raises OSError: at the start, there is no cluster without it."""
        self.info.ranks = self.children.places()
        self.info.ready = sorted(self.ready)
        self.paths.write(self.info)
        self.saved = time.monotonic()
        self.news.note()

    def wake(self) -> None:
        """Wake the watch loop at once."""
        with contextlib.suppress(BlockingIOError):  # the buffer is full, so it wakes anyway
            self.waking.send(b"\0")

    # -- requests

    def take(self, question: Question) -> None:
        """Handle a request of a kernel, a rank or another client; in the server's thread."""
        if question.content["do"] == "ready":
            self.note_ready(question.content["rank"], question.content["start"], question.peer)
            return
        parts = (
            self.connections, self.runs, self.requests, self.news, self.rendezvous, self.debug,
        )  # fmt: skip
        if not any(part.take(question) for part in parts):
            question.answer(**self.answer(question.content))

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request that can be answered at once."""
        if question["do"] == "stop":
            self.stopping.set()
            self.wake()
        elif question["do"] == "out of step":
            self.runs.note_out_of_step()
        elif question["do"] == "until":
            return {"until": self.job_end.until if self.job_end else 0.0}
        elif question["do"] == "restart":
            self.runs.current_or_raise(question.get("run"))
            refused = self.restarts.ask_for(question["ranks"])
            self.wake()
            return {"refused": refused}
        elif question["do"] != "alive":
            raise RankroomError(UNKNOWN_REQUEST.format(name=self.info.name, do=question["do"]))
        return {}

    def note_ready(self, rank: int, start: int, peer: bytes) -> None:
        """Note that a rank is ready: cells may be sent to it."""
        with self.restarts.lock:
            # Its end may have been noticed first, through its agent.
            if self.children.starts.get(rank) != start or str(rank) in self.info.exits:
                return
            self.connections.connected(rank, peer)
            self.ready.add(rank)
            self.changed = True
            if len(self.ready) == self.info.size:
                self.runs.ready()
        self.runs.came(rank)
        self.wake()

    def note_run(self, run: str, state: str) -> None:
        """Note that a run has begun or ended; in the server's thread."""
        self.news.note_run(run, state)
        self.debug.forget_gone()
        if state != "running":
            self.rendezvous.forget_arrivals()

    def lose(self, rank: int, how: str) -> None:
        """Note that the process of a rank has ended, and how."""
        seconds, comes = self.restarts.return_timeout_s(rank), rank in self.restarts.asked

        def note() -> None:
            self.connections.gone(rank)
            self.debug.gone(rank)
            run = self.runs.current
            is_in_run = run is not None and rank in run.running
            if not self.runs.wait_for(rank, how, seconds, comes):
                self.runs.lose({rank: how})
            if is_in_run:
                self.rendezvous.break_up(rank)  # others may be waiting for it there

        # In the thread that starts runs: a run that has begun is notified, and the next one finds
        # the rank absent.
        self.server.call(note)

    # -- watching

    def watch(self) -> None:
        """Until told to stop, note how processes end, and restart ranks that should come back."""
        trouble = ""
        while not self.stopping.is_set():
            if select.select([self.woken], [], [], WATCH_INTERVAL_S)[0]:
                self.woken.recv(4096)
            if self.stopping.is_set():
                return
            try:
                if self.is_over():
                    return
                trouble = ""
            except Exception as error:
                # Such as a lack of descriptors or threads, or a bug of ours: the ranks stay alive.
                if repr(error) != trouble:
                    trouble = repr(error)
                    with contextlib.suppress(OSError):  # a full disk
                        traceback.print_exc()

    def is_over(self) -> bool:
        """Check everything once, and return whether the cluster is to end."""
        code = self.children.controller.poll()
        if code is not None:
            how = f"the ipyparallel controller {describe_exit(code)}"
            is_young = len(self.ready) < self.info.size
            self.fail(with_log(how, self.paths.controller_log) if is_young else how)
            return True
        self.note_limit()
        self.note_agents()
        if self.info.state == "failed":
            return True
        self.note_ends()
        self.do_restarts()
        if why := self.why_all_ended():
            self.fail(why)
            return True
        if self.job_end and self.job_end.over:
            self.told_to_end = True
            return True
        self.runs.look()
        if self.connections.modules - self.imported and not self.info.preload:
            self.imported |= self.connections.modules
            preload.note(self.connections.modules)
        if self.lease.over(self.runs.current is not None):
            self.info.message = f"no notebook has used it for {self.info.lease:g} h"
            return True
        return False

    def fail(self, message: str) -> None:
        """Record the failure before the processes are ended: clients need not wait for that."""
        self.info.state, self.info.message = "failed", message
        self.save()

    def note_agents(self) -> None:
        """Start the ranks once all agents are ready, and note which agents are silent."""
        if not self.children.ranks:
            self.start_ranks()
        if self.silent_nodes is None:
            return
        up = self.ready | {int(rank) for rank in self.info.exits}
        silent = self.children.silent(up)
        now = time.monotonic()
        if now > self.last_heartbeat + HEARTBEAT_PERIOD_S:
            self.last_heartbeat = now
            self.children.beat()
        # Their nodes may only be cut off, with ranks alive: only the scheduler's word ends them.
        over = self.silent_nodes.over({agent.node: now - agent.heard for agent in silent})
        for agent in silent:
            if agent.node in over:
                self.give_up(agent, over[agent.node])
        self.note_silent([agent for agent in silent if agent.node not in over])

    def give_up(self, agent: AgentProcess, why: str) -> None:
        """Give up an agent whose node is gone, and its ranks."""
        for rank in self.children.ranks_of(agent):
            if str(rank) not in self.info.exits:
                self.lost[rank] = f"{GIVEN_UP}: {why}"
        agent.give_up()

    def note_silent(self, agents: Sequence[AgentProcess]) -> None:
        """Record which agents are silent now; if that has changed, notify the run in progress."""
        before = {silence.node for silence in self.connections.silent.values()}
        self.connections.silent = {
            rank: Silence(agent.node, agent.heard)
            for agent in agents
            for rank in self.children.ranks_of(agent)
        }
        if before == {agent.node for agent in agents}:
            return
        now = time.monotonic()
        self.info.silent = {agent.node: time.time() - (now - agent.heard) for agent in agents}
        self.save()

        def tell() -> None:
            if recorder := self.runs.current:
                recorder.note_silence()

        self.server.call(tell)

    def start_ranks(self) -> None:
        agents = self.children.agents
        for agent in agents:
            if agent.refused or agent.is_over:
                ended = f"the agent of {agent.node} {self.children.how_agent_ended(agent)}"
                self.fail(agent.refused or with_log(f"{ended} while starting", agent.log))
                return
        if self.children.start_ranks():
            self.imported = set.union(*(agent.imported for agent in agents))
            notes = [] if self.info.locked else [NO_LOCKS.format(folder=self.paths.folder.parent)]
            notes += [note for agent in agents for note in agent.notes]
            self.info.notes = list(dict.fromkeys(notes))
            self.info.state, self.info.message = "running", ""
            self.save()
        elif (message := start_limit.words(agents)) != self.info.message:
            self.info.message = message
            self.save()

    def why_all_ended(self) -> str:
        """Return why no rank is left; empty while there are ranks, or some may be restarted.

        A refused fork does not end a cluster, nor does a node that a client gave up although its
        scheduler has not said that it is gone.
        """
        hows = set(self.info.exits.values())
        stays = (NOT_STARTED.format(error=""), FOR_RESTART)
        if len(self.info.exits) < self.info.size or any(how.startswith(stays) for how in hows):
            return ""
        who = "rank 0" if self.info.size == 1 else "every rank"
        return f"{who} {hows.pop()}" if len(hows) == 1 else "every rank has ended"

    def note_ends(self) -> None:
        pids = [process.pid for process in self.children.ranks.values()]
        if pids != [rank.pid for rank in self.info.ranks]:
            self.changed = True
        ended = []
        for rank, process in list(self.children.ranks.items()):
            if str(rank) in self.info.exits or not process.ended:
                continue
            how = self.lost.pop(rank, "") or self.children.how_ended(rank)
            back, how = self.restarts.decide_auto_restart(rank, how)
            with self.restarts.lock:
                self.info.exits[str(rank)] = how
                self.ready.discard(rank)
                if back:
                    self.restarts.asked.add(rank)
                    self.info.starting.append(rank)
            self.lose(rank, how)
            ended.append(rank)
        if ended:  # once for all: the ranks of a node end together, and each save lists all ranks
            self.save()
            hub.unregister(self.paths.engine_file, ended, UNREGISTER_TIMEOUT_S)

    def note_limit(self) -> None:
        """Save the end time of the job when it has changed."""
        known = self.info.allocation
        if self.job_end and known and known.until != self.job_end.until:
            self.info.allocation = dataclasses.replace(known, until=self.job_end.until)
            self.save()

    def note_end_of_job(self) -> None:
        """Record why all ranks end before they do: Slurm leaves a few seconds at most."""
        if self.told_to_end and self.job_end and (why := self.job_end.why()):
            self.info.message = why
            for rank in self.living():
                self.info.exits[str(rank)] = f"was ended: {why}"

    def do_restarts(self) -> None:
        with self.restarts.lock:
            ranks = sorted(self.restarts.asked)
            self.ready.difference_update(ranks)
            coming = {r for r in self.info.starting if str(r) not in self.info.exits}
            starting = sorted({*ranks, *(coming - self.ready)})
            is_due = time.monotonic() > self.saved + MIN_SAVE_INTERVAL_PER_RANK_S * self.info.size
            changed = starting != self.info.starting or (
                self.changed and (is_due or len(self.ready) == self.info.size)
            )
            self.changed = self.changed and not changed
            self.info.starting = starting
        if changed or ranks:
            self.save()
        if ranks:
            self.restart(ranks)
            with self.restarts.lock:
                self.restarts.asked.difference_update(ranks)

    def restart(self, ranks: list[int]) -> None:
        """End `ranks` as far as they still run, and start them again, with the same engine ids."""
        self.runs.take_late(ranks)
        given_up = self.children.end(ranks)
        if self.info.allocation is not None:  # on this machine, ranks end with their agent
            for rank in set(self.living()) & given_up.keys():
                self.lost[rank] = f"{FOR_RESTART}: its node {given_up[rank]} does not answer"
        for rank in ranks:
            how = self.lost.pop(rank, "was restarted")
            self.lose(rank, self.info.exits.get(str(rank), how))
        hub.unregister(self.paths.engine_file, ranks)
        with self.restarts.lock:  # the old processes may have become ready before they ended
            self.ready.difference_update(ranks)
        for rank in ranks:
            self.info.past[str(rank)] = self.info.exits.pop(str(rank), "")
            self.info.restarts[str(rank)] = self.info.restarts.get(str(rank), 0) + 1
            try:
                self.children.start_rank(rank)
            except OSError as error:
                self.info.exits[str(rank)] = NOT_STARTED.format(error=error)
        # The process groups of the other ranks hold connections to processes that are gone.
        self.info.epoch += 1
        self.save()

    def living(self) -> list[int]:
        return [rank for rank in self.children.ranks if str(rank) not in self.info.exits]

    # -- ending

    def close(self) -> None:
        """End every process, and record that the cluster is stopped, unless it has failed."""
        self.runs.is_ending = True
        if self.info.state != "failed":
            self.note_end_of_job()
            self.info.state = "ending"
            self.save()
        ranks = range(self.info.size)
        self.runs.take_late(ranks)
        self.children.end_all()
        why = f"ended with its cluster: {self.info.message or 'it was stopped'}"
        self.runs.close({rank: self.info.exits.get(str(rank), why) for rank in ranks})
        if self.info.state != "failed":
            self.info.state = "stopped"
        self.save()


def may_run_out(size: int) -> bool:
    """Return whether connections to a cluster of `size` ranks could use up all file descriptors.

    ZeroMQ aborts a process that listens on a socket in a folder and has no descriptor left for a
    new connection. On a TCP port the connection is deferred, and retried until there is one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most != resource.RLIM_INFINITY and most < size + MAX_EXPECTED_CLIENTS


def main(argv: list[str]) -> None:
    """Run the cluster in folder argv[1], with argv[2] GPUs, until it is stopped."""
    folder = Path(argv[1])
    paths = ClusterPaths(folder.name, folder.parent)
    info = paths.read_patiently()
    if info is None:
        raise SystemExit(f"no cluster.json in {folder}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        supervisor = Supervisor(paths, info, int(argv[2]))
        supervisor.watch()
        supervisor.close()
        if supervisor.info.state == "stopped" and not paths.unfinished():
            os.close(supervisor.claim)  # NFS keeps an open file, and its folder with it
            paths.remove()
    except (OSError, RankroomError) as error:
        if info.state == "starting":
            why = (file_error(error) if isinstance(error, OSError) else None) or error
            info.state, info.message = "failed", f"cannot start: {why}"
            paths.write(info)
        raise


NO_LOCKS = (
    "the file system of {folder} does not support file locks, so this cluster does not end by "
    "itself when it is no longer used: end it with `%cluster stop`"
)

if __name__ == "__main__":
    main(sys.argv)
