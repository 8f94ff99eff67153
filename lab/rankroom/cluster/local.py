"""A cluster whose supervisor this process asks by itself: start, attach, run cells, stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any

from rankroom import errors
from rankroom.cluster import launch as local
from rankroom.cluster import lookup, repair
from rankroom.cluster.base import AnyCluster
from rankroom.cluster.restart import Restarts
from rankroom.errors import NoClusterError, RankroomError, RecordError, StartError, UnreadableError
from rankroom.rank import values
from rankroom.record.cluster_file import VERSION, ClusterInfo, ClusterPaths, tail
from rankroom.record.model import Json, RunInfo
from rankroom.rpc.client import Answer, Client
from rankroom.run.run import Run
from rankroom.supervisor import lease
from rankroom.system.polling import poll_until

if TYPE_CHECKING:
    from rankroom.run.engine_client import EngineClient

Progress = Callable[[str], None]
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


class Cluster(AnyCluster):
    """Ranks on this machine, or on nodes of this process's own job."""

    def __init__(self, paths: ClusterPaths, info: ClusterInfo) -> None:
        """Raises NoClusterError where the supervisor is gone, or of an earlier version."""
        super().__init__(paths, info)
        if info.version < VERSION:
            raise NoClusterError(EARLIER.format(name=info.name))
        self._runs: dict[str, Run] = {}
        self._latest: Run | None = None
        self._engines: EngineClient | None = None
        self._client: Client | None = None
        self._asks = ("", "")  # whom the client asks: address and key
        self._restarts = Restarts(paths, info, self._ask)
        self._lease = lease.hold(paths.folder)

    @classmethod
    def local(
        cls,
        ranks: int | None = None,
        name: str | None = None,
        cwd: str | None = None,
        progress: Progress = lambda words: None,
        auto_restart: bool = False,
        reached_from: str = "",
        preload: str = "",
    ) -> Cluster:
        """Start ranks on this machine: one per GPU, or `ranks` CPU ranks (2 unless said).

        In a Slurm job it is the job's nodes: one rank per GPU, or as many as the job has tasks.
        With `auto_restart`, a rank that dies by itself is brought back, without its variables.
        `reached_from` is a machine outside of the job whose processes reach the ranks as well.
        Ranks of this machine are forked by a process that has imported the modules `preload` names
        ("torch,horovod.torch"), else those that cells imported last; with "none" each starts alone.
        `progress(words)` is called as the start goes on. Raises StartError with the cause and the
        end of the log that tells it, within 30 s (90 s in a job); nothing is left running then.
        """
        paths, keeper = local.launch(ranks, name, cwd, auto_restart, reached_from, preload)
        return cls.ready(paths, keeper, progress)

    @classmethod
    def ready(
        cls,
        paths: ClusterPaths,
        keeper: subprocess.Popen[bytes],
        progress: Progress = lambda words: None,
    ) -> Cluster:
        """The cluster that `launch` began to start, once its ranks are ready, as with `local`."""
        held = lease.hold(paths.folder)
        try:
            made = cls(paths, local.wait_ready(paths, keeper, progress))
            made._tidy()
            made.make_current()
            return made
        except BaseException:
            lookup.end(paths)
            raise
        finally:
            os.close(held)

    @classmethod
    def attach(cls, name: str | None = None) -> AnyCluster:
        """Connect to a running cluster, the one named or the newest, and have its cells run there.

        A run that is on is its latest run then. Raises NoClusterError with the names there are.
        """
        attached = cls.connect(name)
        if isinstance(attached, Cluster):
            attached._tidy()
        attached.make_current()
        return attached

    @classmethod
    def connect(cls, name: str | None = None) -> AnyCluster:
        """Only the connection of `attach`."""
        chosen = lookup.find(name)
        if chosen.far is not None:
            from rankroom.remote.cluster import RemoteCluster

            patience = RemoteCluster.BACK_S if chosen.state == "running" else 0.0
            return RemoteCluster.of(chosen).until_ready(patience=patience)
        paths = ClusterPaths(chosen.name)
        made = cls(paths, chosen)
        try:
            made._follow()
        except RankroomError as error:
            made.close()
            log = tail(paths.keeper_log)
            raise StartError(DEAF.format(name=chosen.name, error=error, log=log)) from None
        return made

    # -- what it is

    @property
    def alive(self) -> list[int]:
        info = self.refresh()
        down = {*map(int, info.exits), *info.starting}
        return [rank for rank in info.ready if rank not in down] if self.running else []

    @property
    def running(self) -> bool:
        return local.alive(self.paths.read())

    @property
    def busy(self) -> bool:
        return self._latest is not None and self._latest.state == "running"

    @property
    def latest(self) -> Run | None:
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
        chosen = self._chosen(ranks)
        said = self._ask(
            "run", source=source, ranks=chosen, name=name, count=count, notes=list(notes),
            restarts=self._restarts.told, profile=profile, own=own, host=socket.gethostname(),
            pid=os.getpid(),
        )  # fmt: skip
        self._restarts.told |= said["restarts"]
        return self._take(said["run"])

    def rejoin(self, seconds: float = REJOIN_S) -> bool:
        run = self.run("")
        if not run.wait(seconds):
            run.interrupt()
            run.wait(seconds)
            return False
        if run.state != "done":
            return False
        self._ask("forget", run=run.id)  # a cell that nobody wrote
        shutil.rmtree(run.path, ignore_errors=True)  # where that is a replica
        return True

    def interrupt(self) -> None:
        self._ask("interrupt")

    def release(self) -> str:
        return str(self._ask("release")["text"])

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        said = self._ask("stacks", ranks=self._chosen(ranks))["stacks"]
        return {int(rank): str(text) for rank, text in said.items()}

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        self._apply("take", self._chosen(ranks), *values.pack(names))

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        return self._apply("give", self._chosen(ranks), name=name)

    def apply(self, rank: int, function: Callable[..., Any], *args: Any) -> Applied:
        return Applied(lambda: self._apply("call", [rank], *values.pack((function, args)))[rank])

    def _apply(self, how: str, ranks: list[int], *parts: bytes, name: str = "") -> dict[int, Any]:
        about = {"how": how, "ranks": ranks, "name": name}
        said = self._ask("apply", *parts, patience=LONG_S, **about)
        found, begin = {}, 0
        for rank, count in zip(ranks, said["counts"], strict=True):
            if count:
                found[rank] = values.unpack(said.buffers[begin : begin + count])
            begin += count
        return found

    def view(self, ranks: Sequence[int] | None = None) -> Any:
        """ipyparallel's own view of some ranks. Raises NoClusterError for ranks that are down."""
        chosen = self._chosen(ranks)
        if down := [rank for rank in chosen if rank not in self.alive]:
            lookup.living(self.paths)
            raise NoClusterError(f"rank {down[0]} {self.how_ended(down[0])}")
        if self._engines is None:
            # Not before it is needed: its import takes a while.
            from rankroom.run.engine_client import EngineClient

            self._engines = EngineClient(self.paths.client_file)
        return self._engines.view(chosen)

    def restart(self, ranks: Sequence[int]) -> None:
        self._restarts.restart(self._chosen(ranks))
        self.refresh()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._engines is not None:
            self._engines.close()
            self._engines = None
        held, self._lease = self._lease, -1
        if held >= 0:
            os.close(held)
        super().close()

    def stop(self) -> None:
        run = self._latest
        lookup.end(self.paths)
        if run is not None and run.state == "running":
            run.wait(STOP_S)
        self.close()

    # -- how

    def _ask(self, do: str, *buffers: bytes, patience: float = ASK_S, **question: Any) -> Answer:
        """What the supervisor answers. Raises what it raised, NoClusterError once it is gone."""
        answer = self._connection().ask(*buffers, do=do, **question)
        until = time.monotonic() + patience
        while True:
            try:
                said = answer.result(AGAIN_S)
                break
            except NotYet:
                # By its process: who connects to a socket in a folder needs a descriptor at both
                # ends, and ZeroMQ ends a process that listens and has none.
                self._demand_alive()
                waits = bool(self.refresh().starting)  # for ranks that are being restarted
                if not waits and time.monotonic() > until:
                    raise StartError(SLOW.format(name=self.name, seconds=patience)) from None
        errors.raise_told(said)
        return said

    def _connection(self) -> Client:
        """The connection to whoever keeps the cluster now."""
        info = self.refresh()
        if not info.rpc:
            self._demand_alive()
        if self._client is None or self._asks != (info.rpc, info.rpc_key):
            if self._client is not None:
                self._client.close()
            self._asks = info.rpc, info.rpc_key
            self._client = Client(*self._asks, self._told)
        return self._client

    def _demand_alive(self) -> None:
        """Raise NoClusterError if nobody keeps the cluster any more."""
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
            threading.Thread(target=run.wait, name="rankroom-run", daemon=True).start()
        return run

    def _run_of(self, told: Json) -> Run:
        info = RunInfo.from_json(told)
        # What was told of it before this answer was read is not older.
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
        if local.alive(self.paths.read()):
            return False

        def is_complete() -> bool:
            info = self.store.load(run.id)
            return info.state != "lost" or repair.complete(self.store, info)

        with contextlib.suppress(RecordError):
            poll_until(is_complete, ORPHANED_S, 0.2)
        return True

    def _tidy(self) -> None:
        # When a cluster comes: often enough, and never while a cell waits.
        threading.Thread(target=self._prune, name="rankroom-prune", daemon=True).start()

    def _prune(self) -> None:
        """Complete what supervisors that were killed left, and remove old records."""
        with contextlib.suppress(RankroomError, OSError):
            repair.complete_all(self.store)
            self.store.prune()


class Applied:
    """What `apply` returns: asked for in a thread, as whoever waits may have little patience."""

    def __init__(self, call: Callable[[], Any]) -> None:
        pool = ThreadPoolExecutor(1)
        self._future = pool.submit(call)
        pool.shutdown(wait=False)

    def get(self, timeout: float | None = None) -> Any:
        """What the function came to. Raises TimeoutError, RankroomError where it failed."""
        try:
            return self._future.result(timeout)
        except NotYet:
            raise TimeoutError("it did not answer in time") from None


EARLIER = (
    "cluster {name} was started by an earlier version of Rankroom, which this one cannot use: "
    "`%cluster stop {name}` ends it, or go on with the kernel that started it"
)
DEAF = (
    "cluster {name} does not answer ({error}): `%cluster stop` ends it; its supervisor said:\n{log}"
)
SLOW = "the supervisor of {name} did not answer within {seconds:.0f} s: `%cluster stop` ends it"
