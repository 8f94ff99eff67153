"""A cluster of ranks, wherever they run: start, attach, run cells, stop."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rankroom import local, rescue
from rankroom.adopt import AdoptedRun, adopt
from rankroom.clock import Clocks
from rankroom.clusterfile import ClusterInfo, ClusterPaths, all_clusters, tail
from rankroom.errors import (
    NO_CLUSTER,
    NoClusterError,
    RankroomError,
    RecordError,
    StartError,
    UsageError,
)
from rankroom.link import Link
from rankroom.rank import lease
from rankroom.rank.rendezvous import ask
from rankroom.record import RankInfo
from rankroom.run import Run
from rankroom.salvage import TendedStore, salvage
from rankroom.spec import format_ranks
from rankroom.store import Store
from rankroom.store.takeover import orphans
from rankroom.turn import STOPPED, Turn

Progress = Callable[[str], None]
MIND_S = 0.5  # between two looks at who keeps the cluster, while a run is on
COMES_S = 2.0  # for a rank that is ready to be known here
NEXT_S = 0.01  # after a run, before the files of the next record are made
REJOIN_S = 15.0  # for ranks to set up anew what they had set up together
STEP_ENDS_S = 5.0  # for Slurm to say how a rank on a node ended
STOP_S = 8.0  # for a run that is on when its cluster is stopped


class Cluster:
    """Ranks that stay until stopped; this object is one process's connection to them."""

    current: ClassVar[Cluster | None] = None  # what this process last started or attached to

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, link: Link) -> None:
        self.paths = paths
        self.info = info
        self.store = Store()
        self._link = link
        self._clocks = Clocks(link.request)
        self._clocks.compare(info.ranks)
        self._turn = Turn(paths)
        self._read = 0  # when the state that is known was written
        self._told = dict(info.restarts)
        self._lease = lease.hold(paths.folder)
        self._cells = 0
        self._latest: Run | None = None
        self.adopted: list[AdoptedRun] = []  # runs of other kernels that this one took up
        Cluster.current = self

    @classmethod
    def local(
        cls,
        ranks: int | None = None,
        name: str | None = None,
        cwd: str | None = None,
        progress: Progress = lambda words: None,
        auto_restart: bool = False,
    ) -> Cluster:
        """Start ranks on this machine: one per GPU, or `ranks` CPU ranks (2 unless said).

        In a Slurm job it is the job's nodes: one rank per GPU, or as many as the job has tasks.
        With `auto_restart`, a rank that dies by itself is brought back, without its variables.
        `progress(words)` is called as the start goes on. Raises StartError with the cause and the
        end of the log that tells it, within 30 s (90 s in a job); nothing is left running then.
        """
        paths, keeper = local.launch(ranks, name, cwd, auto_restart)
        begun = time.monotonic()
        link: Link | None = None
        told = ""
        held = lease.hold(paths.folder)
        try:
            limit = local.start_s(paths.read())
            while time.monotonic() - begun < limit:
                if why := local.failure(paths, keeper):
                    raise why
                info = paths.read()
                if link is None and info and info.keeper and _written(paths.client_file):
                    link = Link(paths.client_file)
                ready = link.ranks if link is not None else []
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
                    return made
                time.sleep(0.01)
            missing = sorted(set(range(info.size if info else 0)) - set(ready))
            raise local.timed_out(paths, missing)
        except BaseException:
            if link is not None:
                link.close()
            end(paths)
            raise
        finally:
            os.close(held)

    @classmethod
    def attach(cls, name: str | None = None) -> Cluster:
        """Connect to a running cluster, the one named or the newest, and look after its records.

        Runs whose kernel is gone are taken up. Raises NoClusterError with the names there are.
        """
        attached = cls.connect(name)
        attached.adopt()
        attached._tidy()
        return attached

    @classmethod
    def connect(cls, name: str | None = None) -> Cluster:
        """Only the connection of `attach`: enough to interrupt, release or restart its ranks."""
        running = running_clusters()
        if not running:
            raise NoClusterError(NO_CLUSTER)
        chosen = running[0] if name is None else next((c for c in running if c.name == name), None)
        if chosen is None:
            names = ", ".join(info.name for info in running)
            raise NoClusterError(f"no running cluster is named {name!r}; running: {names}")
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
    def name(self) -> str:
        return self.info.name

    @property
    def size(self) -> int:
        return self.info.size

    @property
    def ranks(self) -> list[RankInfo]:
        """Where each rank lives."""
        return self.refresh().ranks

    @property
    def alive(self) -> list[int]:
        """The ranks that answer now."""
        return sorted(self._link.ranks)

    @property
    def running(self) -> bool:
        """True while the cluster is kept, whatever its ranks do."""
        return local.alive(self.paths.read())

    @property
    def busy(self) -> bool:
        """True while a run of this process is on."""
        return self._latest is not None and self._latest.state == "running"

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.size} ranks>"

    def describe(self) -> str:
        """One line: name, ranks, where and on what."""
        hosts = sorted({rank.host for rank in self.ranks})
        devices = "CPU" if self.ranks[0].device == "cpu" else "one GPU each"
        word = "rank" if self.size == 1 else "ranks"
        return f"{self.name}: {self.size} {word} on {', '.join(hosts)} ({devices})"

    def warning(self) -> str:
        """What is likely a mistake in how the ranks were placed; empty if nothing."""
        places = [(rank.host, rank.device) for rank in self.info.ranks if rank.device != "cpu"]
        shared = [place for place in set(places) if places.count(place) > 1]
        if not shared:
            return ""
        return (
            f"{len(places)} ranks share {len(set(places))} GPUs: one rank per GPU is what most "
            "code expects, and NCCL refuses two on one"
        )

    def refresh(self) -> ClusterInfo:
        """What the keeper last wrote about the cluster."""
        with contextlib.suppress(OSError):
            written = self.paths.info.stat().st_mtime_ns
            if written != self._read and (info := self.paths.read()) is not None:
                self.info, self._read = info, written
        return self.info

    def how_ended(self, rank: int, pid: int = 0) -> str:
        """How a rank's process (`pid`, or the latest) ended, in words, as its keeper saw it."""
        # Slurm says it some time after the process beside the rank does.
        deadline = time.monotonic() + (STEP_ENDS_S if self.info.allocation else 1.0)
        while time.monotonic() < deadline:
            info = self.paths.read()
            if info is None:
                return "ended with its cluster"
            if pid and info.ranks and info.ranks[rank].pid != pid:
                return info.past.get(str(rank)) or "was restarted"
            if str(rank) in info.exits:
                return info.exits[str(rank)]
            if not local.alive(info):
                return f"ended with its cluster: {why_gone(info)}"
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
        """Run `source` as a cell on all ranks, or on `ranks`; returns while it runs.

        `count` numbers the cell in tracebacks; `notes` go into the record; `profile` adds the
        operators that PyTorch's and TensorFlow's profilers see. With `own`, the ranks, which are
        0, 1, … then, are all there are for this cell: its collectives are theirs alone. Raises
        UsageError for ranks that are not there, NoClusterError if ranks have died, RankroomError
        if another run is on.
        """
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        self._check(chosen)
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
        told = [self._rank(rank) for rank in chosen]
        pids = {rank.rank: rank.pid for rank in told}
        clocks = self._clocks.of(told)
        for each in told:
            each.clock = clocks.get(each.rank)
        run = Run(
            source, told, self.size, self.name, self._link, self.store, self.paths.spool,
            lambda rank: self.how_ended(rank, pids[rank]), name, (*notes, *self._news(chosen)),
        )  # fmt: skip
        epoch = self.info.epoch
        settle = self._turn.begin(lock, epoch)
        own = own and len(chosen) < self.size
        # What ranks had set up together has to be set up anew after a world of fewer.
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
        """After a run in a world of its own, set up anew now what all ranks had set up together,
        instead of with the next cell on all of them. False if that fails."""
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
        self.adopted += found
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
        """What ranks still run for a process that is gone, in words; empty if nothing."""
        busy = self._link.busy()
        if not busy:
            return ""
        run = next(iter(busy.values()))
        return (
            f"rank {format_ranks(busy)} still runs {run}, started by a process that is gone: "
            "wait for it, or end it with `%cluster interrupt`"
        )

    def interrupt(self) -> None:
        """KeyboardInterrupt on every rank, whatever it runs and whoever started that.

        What is blocked in a collective is released a little later. Returns when all ranks are
        free, or after a few seconds.
        """
        if self._latest is not None and self._latest.state == "running":
            self._latest.interrupt()
            self._latest.wait(rescue.FREE_S)
        else:
            rescue.interrupt(self._link, self.size, self._turn.doubt)

    def release(self) -> str:
        """Let go of blocked collectives on all ranks; says which libraries let go.

        Raises UsageError when no rank runs anything.
        """
        let_go = rescue.release(self._link, self._turn.doubt)
        if not let_go:
            return f"no rank of {self.name} waits in a collective: nothing to release"
        return f"released {', '.join(let_go)} on the ranks of {self.name}"

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Where the threads of each rank are, as text; of a rank stuck in C code too."""
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        self._check(chosen)
        return rescue.stacks(self._link, chosen, self.paths.spool)

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Set variables on ranks."""
        self._view(ranks).push(names, block=True)

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """The value of a variable (or attribute, `a.b`) on each rank."""
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        values = self._view(chosen).pull(name, block=True)
        return dict(zip(chosen, values, strict=True))

    def apply(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """ipyparallel's asynchronous result of `function(*args)` on one rank."""
        return self._link.view([rank]).apply_async(function, *args)

    def restart(self, ranks: Sequence[int]) -> None:
        """Start some ranks anew, without their variables; the others keep theirs.

        Returns when they are ready. The ranks are wired again by the next cell on all of them.
        Raises UsageError for ranks that are not there or not ready, NoClusterError if the cluster
        is gone, StartError with the end of the log if one of them does not start.
        """
        chosen = self._chosen(ranks)
        before = self._living()
        known = {rank: self._link.identity(rank) for rank in chosen}
        try:
            refused = ask(before.desk, before.secret, do="restart", ranks=chosen).get("refused")
        except (OSError, ValueError):
            raise NoClusterError(GONE.format(name=self.name, why="it does not answer")) from None
        if refused:
            raise UsageError(refused)
        deadline = time.monotonic() + local.start_s(before)
        while waiting := self._unready(chosen, before, known):
            self._living()
            if time.monotonic() > deadline:
                raise local.timed_out(self.paths, waiting)
            time.sleep(0.02)
        # Whoever asked for it needs no telling.
        self._told = {**self._told, **{str(r): self.info.restarts[str(r)] for r in chosen}}

    def close(self) -> None:
        """Let go of the cluster; its ranks stay."""
        if self._latest is not None and self._latest.state == "running":
            self._latest.let_go()
        self._link.close()
        held, self._lease = self._lease, -1
        self.store.forget()
        if held >= 0:
            os.close(held)
        if Cluster.current is self:
            Cluster.current = None

    def stop(self) -> None:
        """End the ranks and everything that was started with them; a run that is on ends, too."""
        run = self._latest
        if run is not None and run.state == "running":
            # Its record takes in what ranks have said until they are ended; then the spool goes.
            ask_to_stop(self.paths)
            run.wait(STOP_S)
        self.close()
        end(self.paths)

    def _living(self) -> ClusterInfo:
        """The cluster's state; NoClusterError if nobody keeps it any more."""
        info = self.paths.read()
        if info is None or info.state == "stopped":
            raise NoClusterError(STOPPED.format(name=self.name))
        if not local.alive(info):
            raise NoClusterError(GONE.format(name=self.name, why=why_gone(info)))
        self.info = info
        return info

    def _unready(
        self, ranks: Sequence[int], before: ClusterInfo, known: dict[int, bytes]
    ) -> list[int]:
        """Which of the ranks that are started anew are not ready; StartError if one will not be."""
        info = self.refresh()
        waiting = []
        for rank in ranks:
            key = str(rank)
            again = info.restarts.get(key, 0) > before.restarts.get(key, 0)
            if again and key in info.exits:
                raise local.ended_while_starting(self.paths, rank, info.exits[key])
            if not again or rank in info.starting or not self._is_new(rank, known[rank]):
                waiting.append(rank)
        return waiting

    def _is_new(self, rank: int, known: bytes) -> bool:
        return self._link.identity(rank) not in (b"", known)

    def _mind(self, run: Run, kept: float = 0.0) -> None:
        """While a run is on, see that its cluster is kept: a dead controller tells nobody.

        `kept` is when it last was.
        """
        if run.state != "running":
            return
        info, now = self.paths.read(), time.monotonic()
        if (alive := local.alive(info)) or not local.ended(info, now - (kept or now)):
            # Only when the ranks have ended is everything that they said in their spool.
            kept = now if alive else kept or now
            if not isinstance(run, AdoptedRun):  # whose writer may have been on another host
                self._clocks.compare(run.info.ranks, run.set_clocks)
            self._link.later(MIND_S, lambda: self._mind(run, kept))
        else:
            run.lose()

    def _news(self, ranks: Sequence[int]) -> list[str]:
        """What to tell once of ranks that were started anew since the last cell."""
        info, told = self.info, self._told
        self._told = {**told, **{k: n for k, n in info.restarts.items() if int(k) in ranks}}
        return [
            RESTARTED.format(rank=rank, why=f" after it {past}" if past else "")
            for rank in ranks
            if info.restarts.get(str(rank), 0) > told.get(str(rank), 0)
            for past in [info.past.get(str(rank), "")]
        ]

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

    def _chosen(self, ranks: Sequence[int]) -> list[int]:
        """These ranks in order. Raises UsageError if one of them is not there."""
        if not ranks:
            raise UsageError("no ranks chosen: leave --ranks out for all of them")
        outside = [rank for rank in ranks if not 0 <= rank < self.size]
        if outside:
            raise UsageError(
                f"no rank {outside[0]}: cluster {self.name} has ranks "
                f"{format_ranks(range(self.size))}"
            )
        return sorted(set(ranks))

    def _check(self, ranks: Sequence[int]) -> None:
        chosen = self._chosen(ranks)
        info = self.refresh()
        if not local.alive(info):
            self._living()
        deadline = time.monotonic() + local.start_s(info)
        while set(info.starting) & set(chosen) and time.monotonic() < deadline:
            time.sleep(0.02)
            info = self._living()
        deadline = time.monotonic() + COMES_S
        while dead := [rank for rank in chosen if rank not in self._link.ranks]:
            # One that was started anew is known here a moment after it says that it is ready.
            if str(dead[0]) in info.exits or time.monotonic() > deadline:
                raise NoClusterError(
                    f"rank {format_ranks(dead)} {self.how_ended(dead[0])}: `%cluster restart "
                    f"--ranks {format_ranks(dead)}` starts it anew, without its variables"
                )
            time.sleep(0.02)
            info = self._living()

    def _view(self, ranks: Sequence[int] | None) -> Any:
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        self._check(chosen)
        return self._link.view(chosen)


def _written(file: Path) -> bool:
    """True once the controller has written all of `file`, not only created it."""
    try:
        json.loads(file.read_text())
    except (OSError, ValueError):
        return False
    return True


def running_clusters() -> list[ClusterInfo]:
    """The clusters whose keeper lives, newest first."""
    return [info for info in all_clusters() if local.alive(info)]


def end(paths: ClusterPaths) -> None:
    """End a cluster: ask its keeper; if that does not answer, it is ended by signal."""
    if paths.read() is not None:
        ask_to_stop(paths)
        local.wait_end(paths)


def ask_to_stop(paths: ClusterPaths) -> None:
    """Ask a cluster's keeper to end it, if there is one."""
    info = paths.read()
    if info is not None:
        with contextlib.suppress(OSError, ValueError):
            ask(info.desk, info.secret, do="stop")


def why_gone(info: ClusterInfo | None) -> str:
    """Why nobody keeps a cluster any more, in words."""
    if info is None or info.state == "stopped":
        return "it was stopped"
    return info.message or "the process that kept it was killed"


GONE = "cluster {name} is gone: {why}; `%cluster restart` starts it anew"
RESTARTED = "rank {rank} was restarted{why}: its variables are gone"
GOES_ON = (
    "run {id} still goes on, started by a kernel that is gone: wait for it (`%runs {id}` shows "
    "it), or end it with `%cluster interrupt`"
)
