"""A cluster whose ranks this process reaches by itself: start, attach, run cells, stop."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankroom.cluster import launch as local
from rankroom.cluster import lookup
from rankroom.cluster.base import AnyCluster
from rankroom.cluster.restart import Restarts
from rankroom.errors import NoClusterError, RankroomError, RecordError, StartError, UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, tail
from rankroom.record.model import RankInfo
from rankroom.record.takeover import orphans
from rankroom.run import rank_control
from rankroom.run.adopt import AdoptedRun, adopt
from rankroom.run.clock import Clocks
from rankroom.run.engine_client import Link
from rankroom.run.run import Run
from rankroom.run.run_lock import RunLock
from rankroom.run.salvage import TendedStore, salvage
from rankroom.run.time_limit import TimeLimit
from rankroom.supervisor import lease
from rankroom.text.rank_ranges import format_ranks

Progress = Callable[[str], None]
LEAVE_S = 1.0  # for the last words of ranks whose job is being ended
TOLD_S = 5.0  # for what else tells that a rank has ended, and for the last it said
MIND_S = 0.5  # between two looks at who keeps the cluster, while a run is on
COMES_S = 2.0  # for a rank that is ready to be known here
NEXT_S = 0.01  # after a run, before the files of the next record are made
# For ranks to set up again what they had set up together. When they cannot be connected, Horovod
# says so after 30 s, and they try again.
REJOIN_S = 75.0
ENDS_S = 5.0  # for its keeper to say how a rank ended, and for Slurm to tell it that
STOP_S = 8.0  # for a run that is on when its cluster is stopped


class Cluster(AnyCluster):
    """Ranks that this process reaches by itself: on this machine, or on nodes of its own job."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, link: Link) -> None:
        super().__init__(paths, info)
        self._link = link
        self._clocks = Clocks(link.request)
        self._clocks.compare(info.ranks)
        self._turn = RunLock(paths)
        self._restarts = Restarts(paths, info, link)
        self._limit = TimeLimit()
        self._lease = lease.hold(paths.folder)
        self._cells = 0
        self._latest: Run | None = None
        self._adopted: list[AdoptedRun] = []

    @classmethod
    def local(
        cls,
        ranks: int | None = None,
        name: str | None = None,
        cwd: str | None = None,
        progress: Progress = lambda words: None,
        auto_restart: bool = False,
        reached_from: str = "",
    ) -> Cluster:
        """Start ranks on this machine: one per GPU, or `ranks` CPU ranks (2 unless said).

        In a Slurm job it is the job's nodes: one rank per GPU, or as many as the job has tasks.
        With `auto_restart`, a rank that dies by itself is brought back, without its variables.
        `reached_from` is a machine outside of the job whose processes reach the ranks as well.
        `progress(words)` is called as the start goes on. Raises StartError with the cause and the
        end of the log that tells it, within 30 s (90 s in a job); nothing is left running then.
        """
        paths, keeper = local.launch(ranks, name, cwd, auto_restart, reached_from)
        return cls.ready(paths, keeper, progress)

    @classmethod
    def ready(
        cls,
        paths: ClusterPaths,
        keeper: subprocess.Popen[bytes],
        progress: Progress = lambda words: None,
    ) -> Cluster:
        """The cluster that `launch` began to start, once its ranks are ready, as with `local`."""
        begun = time.monotonic()
        link: Link | None = None
        info: ClusterInfo | None = None
        ready: Sequence[int] = ()
        told = ""
        held = lease.hold(paths.folder)
        try:
            limit = local.start_s(paths.read())
            while time.monotonic() - begun < limit:
                if why := local.failure(paths, keeper):
                    raise why
                info = paths.read()
                if link is None and info and info.keeper and _written(paths.client_file):
                    # On a busy machine the controller may take longer to answer.
                    with contextlib.suppress(TimeoutError):
                        link = Link(paths.client_file)
                ready = link.ranks if link is not None else []
                if link is not None and info is not None and set(info.ready) - set(ready):
                    link.ask_for_ranks()
                size = info.size if info else 0
                words = f"{len(ready)} of {size} ranks ready" if link else "starting the controller"
                if words != told:
                    progress(words)
                    told = words
                # Where a rank of another node is, is known a moment after that it is ready.
                known = info is not None and all(rank.pid for rank in info.ranks)
                if info is not None and link is not None and known and len(ready) == size:
                    made = cls(paths, info, link)
                    made._tidy()
                    made.make_current()
                    return made
                time.sleep(0.01)
            missing = sorted(set(range(info.size if info else 0)) - set(ready))
            raise local.timed_out(paths, missing)
        except BaseException:
            if link is not None:
                link.close()
            lookup.end(paths)
            raise
        finally:
            os.close(held)

    @classmethod
    def attach(cls, name: str | None = None) -> AnyCluster:
        """Connect to a running cluster, the one named or the newest, and look after its records.

        Runs whose kernel is gone are taken up. Raises NoClusterError with the names there are.
        """
        attached = cls.connect(name)
        if isinstance(attached, Cluster):
            attached.adopt()
            attached._tidy()
        attached.make_current()
        return attached

    @classmethod
    def connect(cls, name: str | None = None) -> AnyCluster:
        """Only the connection of `attach`: enough to interrupt, release or restart its ranks."""
        chosen = lookup.find(name)
        if chosen.far is not None:
            from rankroom.far.cluster import FarCluster

            patience = FarCluster.BACK_S if chosen.state == "running" else 0.0
            return FarCluster.of(chosen).until_ready(patience=patience)
        paths = ClusterPaths(chosen.name)
        try:
            return cls(paths, chosen, Link(paths.client_file))
        except (OSError, RuntimeError, TimeoutError) as error:
            log = tail(paths.controller_log)
            raise StartError(
                f"cluster {chosen.name} does not answer ({error}): `%cluster stop` ends it; "
                f"its controller said:\n{log}"
            ) from None

    # -- what it is

    @property
    def adopted(self) -> list[AdoptedRun]:
        return self._adopted

    @property
    def alive(self) -> list[int]:
        return sorted(self._link.ranks)

    @property
    def running(self) -> bool:
        return local.alive(self.paths.read())

    @property
    def busy(self) -> bool:
        return self._latest is not None and self._latest.state == "running"

    @property
    def latest(self) -> Run | None:
        """The run that this process last started or took up."""
        return self._latest

    def how_ended(self, rank: int, pid: int = 0) -> str:
        # Slurm says it some time after the process beside the rank does.
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:
            info = self.paths.read()
            if info is None:
                return "ended with its cluster"
            if pid and info.ranks and info.ranks[rank].pid != pid:
                return info.past.get(str(rank)) or "was restarted"
            if str(rank) in info.exits:
                return info.exits[str(rank)]
            if not local.alive(info):
                return f"ended with its cluster: {lookup.why_gone(info)}"
            time.sleep(0.05)
        return "does not answer any more"

    # -- what it does

    def run(
        self,
        source: str,
        ranks: Sequence[int] | None = None,
        name: str | None = None,
        count: int | None = None,
        notes: Sequence[str] = (),
        profile: bool = False,
        own: bool = False,
    ) -> Run:
        chosen = self._check(ranks)
        if own and chosen != list(range(len(chosen))):
            raise UsageError("a world of its own has the ranks 0, 1, …")
        if self._turn.is_abandoned():
            for taken in self.adopt():
                if taken.state == "running":
                    raise RankroomError(GOES_ON.format(id=taken.id))
        lock = self._turn.take()
        if self._cells == 0 and (left := self.left_running()):
            os.close(lock)
            raise RankroomError(left)
        self._cells += 1
        try:
            self._link.reach(chosen)
        except BaseException:
            os.close(lock)
            raise
        told = [self._rank(rank) for rank in chosen]
        granted = self.info.allocation
        pids = {rank.rank: rank.pid for rank in told}
        clocks = self._clocks.of(told)
        for each in told:
            each.clock = clocks.get(each.rank)
        run = Run(
            source, told, self.size, self.name, self._link, self.store, self.paths.spool,
            lambda rank: self.how_ended(rank, pids[rank]), name,
            (*notes, *self._restarts.news(self.info, chosen), *self._limit.news(granted)),
        )  # fmt: skip
        epoch = self.info.epoch
        settle = self._turn.begin(lock, epoch)
        own = own and len(chosen) < self.size
        # What ranks had set up together has to be set up again after a world of fewer.
        run.on_end(lambda run: self._turn.end(lock, run, settle or own, epoch))
        run.on_end(lambda run: self._link.later(NEXT_S, self._prepare))
        self._latest = run
        try:
            cells = self._cells if count is None else count
            run.start(epoch, cells, settle, profile=profile, own=own)
        except BaseException:
            os.close(lock)
            raise
        if not clocks:
            self._clocks.compare(told, run.set_clocks)
        self._link.later(MIND_S, lambda: self._mind(run))
        return run

    def rejoin(self, seconds: float = REJOIN_S) -> bool:
        run = self.run("")
        if not run.wait(seconds):
            run.interrupt()
            run.wait(seconds)
            return False
        if run.state != "done":
            return False
        shutil.rmtree(run.path, ignore_errors=True)  # a cell that nobody wrote
        return True

    def adopt(self) -> list[AdoptedRun]:
        """Take up the runs of this cluster whose kernel is gone; one of them may still go on.

        It is this cluster's latest run then: others wait for it, and it can be interrupted.
        """
        left = orphans(self.store, self.name, self.info.created)
        if not left:
            return []
        lock: int | None = None
        with contextlib.suppress(RankroomError):  # a run of a kernel that lives is on
            lock = self._turn.take()
        found = []
        for info in left:
            with contextlib.suppress(RecordError):
                found.append(
                    adopt(info.id, self._link, self.store, self.paths.spool, self.how_ended)
                )
        self._adopted += found
        for run in found:
            if run.state == "running":
                self._latest = run
        if lock is not None:
            held = lock
            if self._latest is None or self._latest not in found:
                os.close(held)
            else:
                # Whether the ranks are in step again is not known: the doubt stays.
                live = self._latest
                live.on_end(lambda run: os.close(held))
                self._link.later(MIND_S, lambda: self._mind(live))
        return found

    def left_running(self) -> str:
        busy = self._link.busy()
        if not busy:
            return ""
        run = next(iter(busy.values()))
        return (
            f"rank {format_ranks(busy)} still runs {run}, started by a process that is gone: "
            "wait for it, or end it with `%cluster interrupt`"
        )

    def interrupt(self) -> None:
        if self._latest is not None and self._latest.state == "running":
            self._latest.interrupt()
            self._latest.wait(rank_control.FREE_S)
        else:
            rank_control.interrupt(self._link, self.size, self._turn.doubt)

    def release(self) -> str:
        let_go = rank_control.release(self._link, self._turn.doubt)
        if not let_go:
            return f"no rank of {self.name} waits in a collective: nothing to release"
        return f"released {', '.join(let_go)} on the ranks of {self.name}"

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        chosen = self._check(ranks)
        return rank_control.stacks(self._link, chosen, self.paths.spool)

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        self.view(ranks).push(names, block=True)

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        values = self.view(chosen).pull(name, block=True)
        return dict(zip(chosen, values, strict=True))

    def apply(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        return self._link.view([rank]).apply_async(function, *args)

    def restart(self, ranks: Sequence[int]) -> None:
        self._restarts.restart(self._chosen(ranks))
        self.refresh()

    def close(self) -> None:
        if self._latest is not None and self._latest.state == "running":
            self._latest.let_go()
        self._link.close()
        held, self._lease = self._lease, -1
        self.store.forget()
        if held >= 0:
            os.close(held)
        super().close()

    def stop(self) -> None:
        run = self._latest
        if run is not None and run.state == "running":
            # Its record takes in what ranks have said until they are ended; then the spool goes.
            lookup.ask_to_stop(self.paths)
            run.wait(STOP_S)
        self.close()
        lookup.end(self.paths)

    def _mind(self, run: Run, last: float = 0.0, gone: frozenset[int] = frozenset()) -> None:
        """While a run is on, see that its cluster is kept: a dead controller tells nobody.

        And who connects while a rank ends may never be told of that. `last` is when the cluster was
        found to be kept, `gone` are the ranks whose loss is seen to.
        """
        if run.state != "running":
            return
        info, now = self.paths.read(), time.monotonic()
        for warning in self._limit.news(info.allocation if info else None):
            run.remark(warning)
        if info is not None and _leave(info, run):
            # The job is being ended, and everything in it soon killed.
            self._link.later(LEAVE_S, run.lose)
            return
        if info is not None and (fresh := frozenset(_ended(info, run)) - gone):
            gone |= fresh
            self._link.later(TOLD_S, lambda: run.lose(fresh))
        if (alive := local.alive(info)) or not local.ended(info, now - (last or now)):
            # Only when the ranks have ended is everything that they said in their spool.
            last = now if alive else last or now
            if not isinstance(run, AdoptedRun):  # whose writer may have been on another host
                self._clocks.compare(run.info.ranks, run.set_clocks)
            self._link.later(MIND_S, lambda: self._mind(run, last, gone))
        else:
            run.lose()

    def _prepare(self) -> None:
        if self._lease >= 0:  # it may have been let go meanwhile
            self.store.prepare()

    def _tidy(self) -> None:
        # When a cluster comes: often enough, and never while a cell waits.
        threading.Thread(target=self._prune, name="rankroom-prune", daemon=True).start()

    def _prune(self) -> None:
        """Make ready for the first run, complete what lost kernels left, let old records go."""
        self._prepare()
        with contextlib.suppress(RankroomError, OSError):
            salvage(self.store)
            TendedStore(self.store.root).prune()

    def _rank(self, rank: int) -> RankInfo:
        info = self.info.ranks[rank]
        return RankInfo(rank, info.host, info.pid, info.device, info.local_rank, "running")

    def _check(self, ranks: Sequence[int] | None) -> list[int]:
        """These ranks, or all, once they are ready; NoClusterError for those that are not."""
        chosen = self._chosen(ranks)
        info = self.refresh()
        if not local.alive(info):
            lookup.living(self.paths)
        deadline = time.monotonic() + local.start_s(info)
        while set(info.starting) & set(chosen) and time.monotonic() < deadline:
            time.sleep(0.02)
            info = self.info = lookup.living(self.paths)
        deadline = time.monotonic() + COMES_S
        while dead := [r for r in chosen if r not in self._link.ranks or str(r) in info.exits]:
            # One that was restarted is known here a moment after it says that it is ready.
            if str(dead[0]) in info.exits or time.monotonic() > deadline:
                raise NoClusterError(
                    f"rank {format_ranks(dead)} {self.how_ended(dead[0])}: `%cluster restart "
                    f"--ranks {format_ranks(dead)}` restarts it, without its variables"
                )
            self._link.ask_for_ranks()
            time.sleep(0.02)
            info = self.info = lookup.living(self.paths)
        return chosen

    def view(self, ranks: Sequence[int] | None) -> Any:
        """ipyparallel's own view of some ranks."""
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        self._check(chosen)
        return self._link.view(chosen)


def _leave(info: ClusterInfo, run: Run) -> bool:
    """Whether all ranks that still run have been told to end."""
    return info.state == "ending" and all(str(rank) in info.exits for rank in run.running)


def _ended(info: ClusterInfo, run: Run) -> list[int]:
    """Which of the run's ranks have ended, or were restarted, as their keeper knows."""
    before = {rank.rank: rank.pid for rank in run.info.ranks}
    now = {rank.rank: rank.pid for rank in info.ranks}
    return [r for r in run.running if str(r) in info.exits or now.get(r) != before[r]]


def _written(file: Path) -> bool:
    """True once the controller has written all of `file`, not only created it."""
    try:
        json.loads(file.read_text())
    except (OSError, ValueError):
        return False
    return True


GOES_ON = (
    "run {id} still goes on, started by a kernel that is gone: wait for it (`%runs {id}` shows "
    "it), or end it with `%cluster interrupt`"
)
