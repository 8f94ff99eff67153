"""What every cluster is to its user: asked by way of its supervisor, wherever its ranks run."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, ClassVar

from rankroom import errors
from rankroom.cluster import actions, liveness, lookup, repair
from rankroom.errors import (
    BROKEN,
    NoClusterError,
    RankroomError,
    RecordError,
    SshError,
    StartError,
    UnreadableError,
    UsageError,
)
from rankroom.rank import packed_values
from rankroom.record.cluster_file import VERSION, ClusterInfo, ClusterPaths
from rankroom.record.model import Json, RankInfo, RunInfo
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from rankroom.rpc.client import Answer, Client, Direct, RpcError
from rankroom.run.run import Run
from rankroom.supervisor import lease
from rankroom.system.polling import poll_until
from rankroom.text.rank_ranges import format_ranks

ASK_S = 30.0  # for the supervisor to answer
LONG_S = 600.0  # the same where a rank has to; it may be busy with a cell, or a value be large
AGAIN_S = 0.5  # between two looks at whether it is still there
# For ranks to set up again what they had set up together. When they cannot be connected, Horovod
# says so after 30 s, and they try again.
REJOIN_S = 75.0
ENDS_S = 5.0  # for the supervisor to say how a rank ended
ORPHANED_S = 20.0  # for ranks to end whose supervisor is gone; on other nodes it takes a while
MANY = 16  # runs that are remembered
STOP_S = 8.0  # for a run that is on when its cluster is stopped


class AnyCluster:
    """Ranks that stay until stopped; this object is one process's connection to them."""

    current: ClassVar[AnyCluster | None] = None  # what this process last started or attached to

    def __init__(self, paths: ClusterPaths, info: ClusterInfo) -> None:
        """Raises NoClusterError for a cluster of another version, which cannot be used."""
        self.paths = paths
        self.info = info
        self.store = Store()
        self._read = 0  # when the state that is known was written
        if info.version != VERSION:
            raise NoClusterError(OTHER_VERSION.format(name=info.name))
        self._runs: dict[str, Run] = {}
        self._latest: Run | None = None
        self._client: Client | None = None
        self._directs: list[Direct] = []  # connections that nobody waits at now
        self._asks = ("", "")  # whom all of them ask: address and key
        self._restarts = dict(info.restarts)  # of each rank, as far as this process was told
        self._lease = lease.hold(paths.folder)

    def make_current(self) -> None:
        """Have the cells of this process run on its ranks."""
        AnyCluster.current = self

    def close(self) -> None:
        self._hang_up()
        held, self._lease = self._lease, -1
        if held >= 0:
            os.close(held)
        if AnyCluster.current is self:
            AnyCluster.current = None

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.size} ranks>"

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
        """What the supervisor last wrote about the cluster."""
        with contextlib.suppress(OSError):
            written = self.paths.info.stat().st_mtime_ns
            if written != self._read and (info := self.paths.read()) is not None:
                self.info, self._read = info, written
        return self.info

    @property
    def alive(self) -> list[int]:
        """The ranks that answer now."""
        info = self.refresh()
        down = {*map(int, info.exits), *info.starting}
        return [rank for rank in info.ready if rank not in down] if self.running else []

    @property
    def running(self) -> bool:
        """True while the cluster is kept, whatever its ranks do."""
        return liveness.alive(self.paths.read())

    @property
    def busy(self) -> bool:
        """True while a run of this process is on."""
        return self._latest is not None and self._latest.state == "running"

    @property
    def latest(self) -> Run | None:
        """The run that this process last started, or that was on when it attached."""
        return self._latest

    def how_ended(self, rank: int) -> str:
        """How a rank's process ended, in words, as its supervisor saw it."""
        # A connection's end may be noticed before the process's.
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:
            info = self.paths.read()
            if info is None:
                return "ended with its cluster"
            if str(rank) in info.exits:
                return info.exits[str(rank)]
            if not liveness.alive(info):
                return f"ended with its cluster: {lookup.why_gone(info)}"
            if info.remote is not None and info.remote.state != "running":
                return info.remote.words
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
        chosen, me = self._chosen(ranks), this_process()
        said = self._ask_directly(
            do="run", source=source, ranks=chosen, name=name, count=count, notes=list(notes),
            restarts=self._restarts, profile=profile, own=own, **vars(me),
        )  # fmt: skip
        self._restarts |= said["restarts"]
        return self._take(said["run"])

    def rejoin(self, seconds: float = REJOIN_S) -> bool:
        """After a run in a world of its own, set up again now what all ranks had set up together,
        instead of with the next cell on all of them. False if that fails."""
        run = self.run("")
        if not run.wait(seconds):
            run.interrupt()
            run.wait(seconds)
            return False
        if run.state != "done":
            return False
        self._ask("forget", run=run.id)  # a cell that the user did not write
        shutil.rmtree(run.path, ignore_errors=True)  # where that is a replica
        return True

    def interrupt(self) -> None:
        """KeyboardInterrupt on every rank, whatever it runs and whichever client started that.

        What is blocked in a collective is released a little later. Returns when all ranks are
        free, or after a few seconds.
        """
        self._ask("interrupt")

    def release(self) -> str:
        """Let go of blocked collectives on all ranks; says which libraries let go.

        Raises UsageError when no rank runs anything.
        """
        return str(self._ask("release")["text"])

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Where the threads of each rank are, as text; of a rank stuck in C code too."""
        said = self._ask("stacks", ranks=self._chosen(ranks))["stacks"]
        return {int(rank): str(text) for rank, text in said.items()}

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Set variables on ranks."""
        self._apply("take", self._chosen(ranks), *packed_values.pack(names))

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """The value of a variable (or attribute, `a.b`) on each rank."""
        return self._apply("give", self._chosen(ranks), name=name)

    def apply(
        self, rank: int, function: Callable[..., Any], *args: Any, patience: float = LONG_S
    ) -> Any:
        """What `function(*args)` comes to on one rank. Raises StartError after `patience` s."""
        packed = packed_values.pack((function, args))
        return self._apply("call", [rank], *packed, patience=patience)[rank]

    def restart(self, ranks: Sequence[int]) -> None:
        """Restart some ranks, without their variables; the others keep theirs.

        Returns when they are ready. The ranks are wired again by the next cell on all of them.
        Raises UsageError for ranks that are not there or not ready, NoClusterError if the cluster
        is gone, StartError with the end of the log if one of them does not start.
        """
        # The client that asked for it needs no note.
        self._restarts |= actions.restart_by(self._ask, self.paths, self._chosen(ranks))
        self.refresh()

    def stop(self) -> None:
        """End the ranks and everything that was started with them; a run that is on ends, too.

        Raises SshError where their site cannot be reached now: the job is cancelled later.
        """
        run, info, later = self._latest, self.paths.read(), ""
        with contextlib.suppress(NoClusterError):  # it is over already
            later = actions.end(self.paths, info) if info is not None else ""
        if run is not None and run.state == "running":
            run.wait(STOP_S)
        self.close()
        if later:
            raise SshError(later)

    # -- how

    def _ask(self, do: str, *buffers: bytes, patience: float = ASK_S, **question: Any) -> Answer:
        """What the supervisor answers. Raises what it raised, NoClusterError once it is gone."""
        until = time.monotonic() + patience
        asked = self._connection().ask(*buffers, do=do, until=until, **question)
        said = self._result(asked, until, patience)
        errors.raise_told(said)
        return said

    def _ask_directly(self, **question: Any) -> Answer:
        """The same, in this thread alone, as a cell waits: no lock is let go before it is sent."""
        try:
            direct = self._directs.pop()
        except IndexError:
            self._connection()
            direct = Direct(*self._asks)
        until = time.monotonic() + ASK_S
        try:
            address, asked = self._asks, direct.ask(until=until, **question)
            self._connection()
            if address != self._asks:  # that supervisor is gone
                direct.close()
                return self._ask_directly(**question)
            said = self._result(asked, until, ASK_S)
        except BaseException:
            direct.close()  # its answer may come yet
            raise
        self._directs.append(direct)
        errors.raise_told(said)
        return said

    def _result(self, asked: Future[Answer] | Direct, until: float, patience: float) -> Answer:
        while True:
            try:
                return asked.result(min(AGAIN_S, patience))
            except RpcError as error:
                raise RankroomError(BROKEN.format(name=self.name, error=error)) from None
            except (NotYet, TimeoutError):
                # By its process: who connects to a socket in a folder needs a descriptor at both
                # ends, and ZeroMQ ends a process that listens and has none.
                self._demand_alive()
                waits = bool(self.refresh().starting)  # for ranks that are being restarted
                if not waits and time.monotonic() > until:
                    raise StartError(SLOW.format(name=self.name, seconds=patience)) from None

    def _connection(self) -> Client:
        """The connection to the cluster's present supervisor."""
        info = self.refresh()
        if not info.rpc:
            self._demand_alive()
        if self._client is None or self._asks != (info.rpc, info.rpc_key):
            self._hang_up()
            self._asks = info.rpc, info.rpc_key
            self._client = Client(*self._asks, self._told)
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        while self._directs:
            self._directs.pop().close()

    def _demand_alive(self) -> None:
        """Raise NoClusterError if the cluster has no supervisor any more."""
        with contextlib.suppress(UnreadableError):
            lookup.living(self.paths)

    def _follow(self) -> None:
        """Learn of the run that is on, if there is one."""
        if info := self._ask("follow")["run"]:
            self._take(info)

    def _take(self, told: Json) -> Run:
        """Make a run the latest; somebody waits for it, so that it is known when it is lost."""
        self._latest = run = self._run_of(told)
        if run.state == "running":
            if self._client is not None:
                self._client.tell(do="follow", run=run.id)
            threading.Thread(target=run.wait, name="rankroom-run", daemon=True).start()
        return run

    def _run_of(self, told: Json) -> Run:
        info = RunInfo.from_json(told)
        # What was said of it before this answer was read is not older.
        if len(self._runs) > MANY:
            for each in list(self._runs.values()):
                if each.state != "running":
                    self._runs.pop(each.id, None)
        return self._runs.setdefault(info.id, Run(info, self.store, self._ask, self._is_orphaned))

    def _told(self, said: Json, buffers: list[bytes]) -> None:
        """A run's state, in the connection's thread."""
        self._run_of(said["run"]).told(RunInfo.from_json(said["run"]))

    def _is_orphaned(self, run: Run) -> bool:
        """Whether the supervisor is gone; what its ranks have left is in the record then."""
        if liveness.alive(self.paths.read()):
            return False

        def is_complete() -> bool:
            info = self.store.load(run.id)
            return info.state != "lost" or repair.complete(self.store, info)

        with contextlib.suppress(RecordError):
            poll_until(is_complete, ORPHANED_S, 0.2)
        return True

    def _apply(
        self, how: str, ranks: list[int], *parts: bytes, name: str = "", patience: float = LONG_S
    ) -> dict[int, Any]:
        about = {"how": how, "ranks": ranks, "name": name}
        said = self._ask("apply", *parts, patience=patience, **about)
        found, begin = {}, 0
        for rank, count in zip(ranks, said["counts"], strict=True):
            if count:
                found[rank] = packed_values.unpack(said.buffers[begin : begin + count])
            begin += count
        return found

    def _chosen(self, ranks: Sequence[int] | None) -> list[int]:
        """These ranks in order, or all. Raises UsageError if one of them is not there."""
        if ranks is None:
            return list(range(self.size))
        if not ranks:
            raise UsageError("no ranks chosen: leave --ranks out for all of them")
        outside = [rank for rank in ranks if not 0 <= rank < self.size]
        if outside:
            raise UsageError(
                f"no rank {outside[0]}: cluster {self.name} has ranks "
                f"{format_ranks(range(self.size))}"
            )
        return sorted(set(ranks))

    def _tidy(self) -> None:
        # When a cluster comes: often enough, and never while a cell waits.
        threading.Thread(target=self._prune, name="rankroom-prune", daemon=True).start()

    def _prune(self) -> None:
        """Complete what supervisors that were killed left, and remove old records."""
        with contextlib.suppress(RankroomError, OSError):
            repair.complete_all(self.store)
            self.store.prune()


OTHER_VERSION = (
    "cluster {name} was started by another version of Rankroom, which this one cannot use: "
    "`%cluster stop {name}` ends it, or go on with the kernel that started it"
)
SLOW = "the supervisor of {name} did not answer within {seconds:.0f} s: `%cluster stop` ends it"
