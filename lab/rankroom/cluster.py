"""A cluster of ranks, wherever they run: start, attach, run cells, stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rankroom import local
from rankroom.clusterfile import ClusterInfo, ClusterPaths, all_clusters, tail
from rankroom.errors import NO_CLUSTER, NoClusterError, RankroomError, StartError, UsageError
from rankroom.hang import main_first
from rankroom.link import Link
from rankroom.rank.rendezvous import ask
from rankroom.record import RankInfo
from rankroom.run import Run
from rankroom.spec import format_ranks
from rankroom.store import Store

Progress = Callable[[str], None]
RELEASE_S = 0.5  # after an interrupt, before blocked collectives are released
FREE_S = 3.0  # for ranks to come free after that
STACKS_S = 1.0  # for a rank to say where its threads are
STACK_SIGNAL = "SIGUSR2"
DOUBT_AT = 16  # the place in the lock file that says whether the last run ended well


class Cluster:
    """Ranks that stay until stopped; this object is one process's connection to them."""

    current: ClassVar[Cluster | None] = None  # what this process last started or attached to

    def __init__(self, paths: ClusterPaths, info: ClusterInfo, link: Link) -> None:
        self.paths = paths
        self.info = info
        self.store = Store()
        self._link = link
        self._cells = 0
        self._latest: Run | None = None
        Cluster.current = self
        # Old records go when a cluster comes: often enough, and never while a cell waits.
        threading.Thread(target=self._prune, name="rankroom-prune", daemon=True).start()

    @classmethod
    def local(
        cls,
        ranks: int | None = None,
        name: str | None = None,
        cwd: str | None = None,
        progress: Progress = lambda words: None,
    ) -> Cluster:
        """Start ranks on this machine: one per GPU, or `ranks` CPU ranks (2 unless said).

        `progress(words)` is called as the start goes on. Raises StartError with the cause and the
        end of the log that tells it, within 30 s; nothing is left running then.
        """
        paths, keeper = local.launch(ranks, name, cwd)
        begun = time.monotonic()
        link: Link | None = None
        told = ""
        try:
            while time.monotonic() - begun < local.START_S:
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
                if info is not None and link is not None and len(ready) == size:
                    return cls(paths, info, link)
                time.sleep(0.01)
            missing = sorted(set(range(info.size if info else 0)) - set(ready))
            raise local.timed_out(paths, missing)
        except BaseException:
            if link is not None:
                link.close()
            end(paths)
            raise

    @classmethod
    def attach(cls, name: str | None = None) -> Cluster:
        """Connect to a running cluster: the one named, or the newest.

        Raises NoClusterError with the names there are.
        """
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
        return self.info.ranks

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
        places = [(rank.host, rank.device) for rank in self.ranks if rank.device != "cpu"]
        shared = [place for place in set(places) if places.count(place) > 1]
        if not shared:
            return ""
        return (
            f"{len(places)} ranks share {len(set(places))} GPUs: one rank per GPU is what most "
            "code expects, and NCCL refuses two on one"
        )

    def how_ended(self, rank: int) -> str:
        """How a rank's process ended, in words, as its keeper saw it."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            info = self.paths.read()
            if info is None:
                return "ended with its cluster"
            if str(rank) in info.exits:
                return info.exits[str(rank)]
            if not local.alive(info):
                return "ended with its cluster"
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
    ) -> Run:
        """Run `source` as a cell on all ranks, or on `ranks`; returns while it runs.

        `count` numbers the cell in tracebacks; `notes` go into the record. Raises UsageError for
        ranks that are not there, NoClusterError if ranks have died, RankroomError if another run
        is on.
        """
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        self._check(chosen)
        lock = self._occupy()
        if self._cells == 0 and (left := self.left_running()):
            os.close(lock)
            raise RankroomError(left)
        self._cells += 1
        run = Run(
            source, [self._rank(rank) for rank in chosen], self.size, self.name, self._link,
            self.store, self.paths.spool, self.how_ended, name, notes,
        )  # fmt: skip
        settle = self._in_doubt(lock)
        run.on_end(lambda run: self._leave(lock, run, settle))
        self._latest = run
        try:
            return run.start(self.info.epoch, self._cells if count is None else count, settle)
        except BaseException:
            os.close(lock)
            raise

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
            self._latest.wait(FREE_S)
            return
        self._link.signal(range(self.size), "SIGINT")
        if self._freed(RELEASE_S):
            return
        with contextlib.suppress(UsageError):
            self.release()
        self._freed(FREE_S)

    def release(self) -> str:
        """Let go of blocked collectives on all ranks; says which libraries let go.

        Raises UsageError when no rank runs anything.
        """
        busy = self._link.busy()
        if not busy:
            raise UsageError(f"no rank of {self.name} runs a cell: there is nothing to release")
        run = next(iter(busy.values()))
        self._doubt()
        ranks = self._link.ranks
        asked = self._link.request(ranks, do="release", run=run)
        deadline = time.monotonic() + FREE_S
        let_go: set[str] = set()
        for future in asked:
            with contextlib.suppress(TimeoutError):
                answer = future.result(max(0.0, deadline - time.monotonic()))
                let_go |= set(answer["content"].get("released", []))
        if not let_go:
            return f"no rank of {self.name} waits in a collective: nothing to release"
        return f"released {', '.join(sorted(let_go))} on the ranks of {self.name}"

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Where the threads of each rank are, as text; of a rank stuck in C code too."""
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        self._check(chosen)
        files = {rank: self._stack_file(rank) for rank in chosen}
        before = {rank: _size(file) for rank, file in files.items()}
        asked = dict(zip(chosen, self._link.request(chosen, do="stacks"), strict=True))
        deadline = time.monotonic() + STACKS_S
        found = {}
        for rank, future in asked.items():
            with contextlib.suppress(TimeoutError):
                answer = future.result(max(0.0, deadline - time.monotonic()))
                found[rank] = str(answer["content"]["stacks"])
        silent = [rank for rank in chosen if rank not in found]
        # Python does not run there, as C code holds its lock: the signal's handler needs none.
        self._link.signal(silent, STACK_SIGNAL)
        deadline = time.monotonic() + STACKS_S
        for rank in silent:
            while _size(files[rank]) == before[rank] and time.monotonic() < deadline:
                time.sleep(0.02)
            text = main_first(_rest(files[rank], before[rank]))
            found[rank] = text or "it does not answer at all"
        return dict(sorted(found.items()))

    def _stack_file(self, rank: int) -> Path:
        return self.paths.spool(rank) / "stacks"

    def _freed(self, seconds: float) -> bool:
        """Wait until no rank runs a cell; False if some still do after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._link.busy(0.2):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

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

    def close(self) -> None:
        """Let go of the cluster; its ranks stay."""
        self._link.close()
        if Cluster.current is self:
            Cluster.current = None

    def stop(self) -> None:
        """End the ranks and everything that was started with them."""
        self.close()
        end(self.paths)

    def _prune(self) -> None:
        with contextlib.suppress(RankroomError, OSError):
            self.store.prune()

    def _rank(self, rank: int) -> RankInfo:
        info = self.info.ranks[rank]
        return RankInfo(rank, info.host, info.pid, info.device, info.local_rank, "running")

    def _check(self, ranks: Sequence[int]) -> None:
        if not ranks:
            raise UsageError("no ranks chosen: leave --ranks out for all of them")
        outside = [rank for rank in ranks if not 0 <= rank < self.size]
        if outside:
            raise UsageError(
                f"no rank {outside[0]}: cluster {self.name} has ranks "
                f"{format_ranks(range(self.size))}"
            )
        alive = self._link.ranks
        dead = [rank for rank in ranks if rank not in alive]
        if dead:
            raise NoClusterError(
                f"rank {format_ranks(dead)} {self.how_ended(dead[0])}: "
                "`%cluster restart` starts all ranks anew"
            )

    def _view(self, ranks: Sequence[int] | None) -> Any:
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        self._check(chosen)
        return self._link.view(chosen)

    def _occupy(self) -> int:
        """Take the cluster for one run; two at once would meet in each other's collectives."""
        try:
            lock = os.open(self.paths.folder / "busy", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise NoClusterError(STOPPED.format(name=self.name)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = ""
            with contextlib.suppress(OSError):
                who = os.pread(lock, DOUBT_AT, 0).decode().strip()
            os.close(lock)
            mine = "this notebook" if who == str(os.getpid()) else f"another process (pid {who})"
            raise RankroomError(
                f"cluster {self.name} is busy with a run of {mine}: wait for it or interrupt it"
            ) from None
        # One write of fixed width: truncating a file first costs more than the rest of this.
        os.pwrite(lock, f"{os.getpid():<16}".encode(), 0)
        return lock

    def _in_doubt(self, lock: int) -> bool:
        """Whether ranks may be out of step because a cell failed, whoever ran it.

        It is noted behind the owner of the lock, and cleared when a run ends well: a kernel that
        dies during a run leaves it set.
        """
        noted = os.pread(lock, 1, DOUBT_AT) in (b"1", b"2")
        os.pwrite(lock, b"1", DOUBT_AT)
        return noted

    def _doubt(self) -> None:
        """Note that ranks are let go from outside the run that is on, which does not know it."""
        with contextlib.suppress(OSError), (self.paths.folder / "busy").open("r+b") as file:
            os.pwrite(file.fileno(), b"2", DOUBT_AT)

    def _leave(self, lock: int, run: Run, settle: bool) -> None:
        """Give the cluster free after `run`; only a cell on all ranks brings them in step again."""
        well = run.state == "done" and (not settle or len(run.info.ranks) == self.size)
        with contextlib.suppress(OSError):
            if run.was_released or os.pread(lock, 1, DOUBT_AT) == b"2":
                well = False
            os.pwrite(lock, b"0" if well else b"1", DOUBT_AT)
        os.close(lock)


STOPPED = "cluster {name} has been stopped: `%cluster start` starts a new one"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _rest(file: Path, begin: int) -> str:
    try:
        return file.read_bytes()[begin:].decode("utf-8", "replace")
    except OSError:
        return ""


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
    info = paths.read()
    if info is None:
        return
    with contextlib.suppress(OSError, ValueError):
        ask(info.desk, info.secret, do="stop")
    local.wait_end(paths)
