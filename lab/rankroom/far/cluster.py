"""A cluster whose ranks are on a site: the same words as of one here, carried by its keeper."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

from rankroom import errors
from rankroom.cluster import actions, launch
from rankroom.cluster.base import AnyCluster
from rankroom.errors import NoClusterError, RankroomError, SshError, StartError
from rankroom.far import start
from rankroom.rank import values
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths, tail
from rankroom.record.model import Json, RunInfo
from rankroom.rpc.client import ask
from rankroom.run.run import Run
from rankroom.scheduler.site import Site
from rankroom.supervisor import lease
from rankroom.system import process_tree

Progress = Callable[[str], None]
PATIENCE_S = 30.0
RUN_S = 60.0
LONG_S = 600.0  # a value may be large and a line slow
COMES_S = 20.0  # for a keeper to begin
STOP_S = 45.0
LOOK_S = 0.05
RUN_LOOK_S = 0.01  # between two looks at what has come here of a run
FOR_EVER = float("inf")


class FarCluster(AnyCluster):
    """Ranks on a site; this object is one process's connection to their keeper here."""

    BACK_S = 15.0  # for a keeper that was started again to reach the ranks

    def __init__(self, paths: ClusterPaths, info: ClusterInfo) -> None:
        super().__init__(paths, info)
        self._lease = lease.hold(paths.folder)
        self._latest: Run | None = None

    @classmethod
    def start(cls, site: Site, name: str | None = None, auto_restart: bool = False) -> FarCluster:
        """Submit a job to `site` whose ranks are this cluster; `until_ready` waits for them.

        Raises UsageError or StartError if nothing can be started.
        """
        return cls.in_folder(start.launch(site, name, auto_restart))

    @classmethod
    def of(cls, info: ClusterInfo) -> FarCluster:
        """The cluster that `info` tells of, with a keeper here again if that was gone."""
        paths = ClusterPaths(info.name)
        if not launch.alive(info):
            start.relaunch(paths)
        return cls(paths, info)

    @classmethod
    def in_folder(cls, paths: ClusterPaths) -> FarCluster:
        """The cluster in `paths`, ready or not. Raises NoClusterError if there is none."""
        info = paths.read()
        if info is None:
            raise NoClusterError(STOPPED.format(name=paths.name))
        return cls(paths, info)

    def until_ready(
        self, progress: Progress = lambda words: None, patience: float = FOR_EVER
    ) -> FarCluster:
        """Wait until its ranks are ready, however long the job is in the queue; `progress(words)`
        tells how it stands. Raises StartError if they will not be, or not within `patience` s, and
        lets go of it then. An interrupt leaves the job where it is: `attach` waits for it again.
        """
        try:
            self._until_ready(progress, patience)
        except RankroomError:
            self.close()
            raise
        return self

    def _until_ready(self, progress: Progress, patience: float) -> None:
        begun = kept = time.monotonic()
        told = ""
        while True:
            info, now = self.paths.read(), time.monotonic()
            if info is None or info.far is None:
                raise StartError(f"cluster {self.name} was stopped before it was ready")
            if info.state in ("failed", "stopped"):
                raise StartError(info.message or info.far.words)
            if info.far.words != told:
                told = info.far.words
                progress(told)
            alive = launch.alive(info)
            kept = now if alive else kept
            if alive and info.state == "running" and info.far.state == "running":
                self.refresh()
                self._follow()
                return
            if now > kept + COMES_S:
                log = tail(self.paths.keeper_log)
                raise StartError(NO_KEEPER.format(path=self.paths.keeper_log, log=log))
            if now > begun + patience:
                raise StartError(NOT_YET.format(name=self.name, words=info.far.words))
            time.sleep(LOOK_S)

    # -- what it is

    @property
    def alive(self) -> list[int]:
        info = self.refresh()
        down = {*map(int, info.exits), *info.starting}
        return [rank for rank in info.ready if rank not in down] if self.running else []

    @property
    def running(self) -> bool:
        return launch.alive(self.paths.read())

    @property
    def site(self) -> Site:
        """The site, with what was asked of it."""
        return start.site_of(self.paths)

    @property
    def busy(self) -> bool:
        return self._latest is not None and self._latest.state == "running"

    @property
    def latest(self) -> Run | None:
        return self._latest

    def describe(self) -> str:
        far = self.refresh().far
        assert far is not None
        where = f"job {far.job} on {far.site}" if far.job else far.site
        left = f", {_left(far.until)}" if far.until else ""
        if not self.info.ranks:
            return f"{self.name}: {far.words}"
        words = f"{super().describe()}, {where}{left}"
        return words if far.state == "running" else f"{words}; {far.words}"

    def how_ended(self, rank: int, pid: int = 0) -> str:
        info = self.paths.read()
        if info is None:
            return "ended with its cluster"
        if str(rank) in info.exits:
            return info.exits[str(rank)]
        if info.far is not None and launch.alive(info) and info.far.state != "running":
            return info.far.words
        return f"ended with its cluster: {info.message or 'it was stopped'}"

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
            "run", patience=RUN_S, source=source, ranks=chosen, name=name, count=count,
            notes=list(notes), profile=profile, own=own,
        )  # fmt: skip
        self._latest = self._run_of(self.store.load(said["runs"][0]))
        return self._latest

    def rejoin(self, seconds: float = 0.0) -> bool:
        return bool(self._ask("rejoin", patience=LONG_S)["well"])

    def interrupt(self) -> None:
        self._ask("interrupt")

    def release(self) -> str:
        return str(self._ask("release")["text"])

    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        said = self._ask("stacks", ranks=self._chosen(ranks))["stacks"]
        return {int(rank): str(text) for rank, text in said.items()}

    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        with self._bytes(values.pack(names)) as given:
            self._ask("push", patience=LONG_S, ranks=self._chosen(ranks), given=str(given))

    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        chosen = self._chosen(ranks)
        with self._bytes(b"") as into:
            self._ask("pull", patience=LONG_S, name=name, ranks=chosen, into=str(into))
            packed: list[bytes] = values.unpack(into.read_bytes())
        return {rank: values.unpack(each) for rank, each in zip(chosen, packed, strict=True)}

    def apply(self, rank: int, function: Callable[..., Any], *args: Any) -> _Applied:
        return _Applied(lambda: self._applied(rank, function, *args))

    def restart(self, ranks: Sequence[int]) -> None:
        self._ask("restart", patience=LONG_S, ranks=self._chosen(ranks))

    def log(self) -> str:
        """The last lines of the job's output."""
        return str(self._ask("log")["text"])

    def close(self) -> None:
        held, self._lease = self._lease, -1
        if held >= 0:
            os.close(held)
        super().close()

    def stop(self) -> None:
        """End the ranks, their job, and everything that was started with them.

        Raises SshError where the site cannot be reached now: the job is cancelled later.
        """
        info, run = self.paths.read(), self._latest
        try:
            later = actions.stop(self.name)
        except NoClusterError:
            later = ""  # it is over already
        self.close()
        if later:
            raise SshError(later)
        if info is not None and info.keeper:
            process_tree.ended_within(info.keeper, STOP_S)
        if run is not None:
            run.wait(1.0)
        self.paths.remove()

    # -- how

    def _ask(self, do: str, patience: float = PATIENCE_S, **question: Any) -> Json:
        """The keeper's answer. Raises what the desk there raised, NoClusterError without a keeper,
        SshError while the site cannot be reached."""
        info = self.paths.read()
        if info is None or info.state == "stopped":
            raise NoClusterError(STOPPED.format(name=self.name))
        if info.state == "failed":
            raise NoClusterError(OVER.format(name=self.name, why=info.message))
        if info.keeper and not info.rpc:
            raise NoClusterError(errors.EARLIER_SITE.format(name=self.name, pid=info.keeper))
        try:
            said = ask(info.rpc, info.rpc_key, patience, do=do, **question)
        except TimeoutError:
            raise SshError(SLOW.format(name=self.name, do=do, seconds=patience)) from None
        except OSError:
            raise NoClusterError(UNKEPT.format(name=self.name)) from None
        errors.raise_told(said)
        return said

    def _run_of(self, info: RunInfo) -> Run:
        return Run(info, self.store, self._ask, look_s=RUN_LOOK_S)

    def _follow(self) -> None:
        """Take the run of this cluster that is on, if there is one, for the latest."""
        since = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.info.created))
        name = (self.info.far and self.info.far.name) or self.name
        for run_id in self.store.ids():
            if run_id < since:
                break
            with contextlib.suppress(RankroomError):
                run = self.store.load(run_id)
                if run.cluster == name and run.state == "running":
                    self._latest = self._run_of(run)
                    return

    def _applied(self, rank: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        with self._bytes(values.pack((function, args))) as file:
            self._ask("apply", rank=rank, given=str(file), into=str(file))
            return [values.unpack(file.read_bytes())]

    @contextlib.contextmanager
    def _bytes(self, data: bytes) -> Any:
        """A file here, in the cluster's folder, by which keeper and kernel pass on bytes."""
        fd, name = tempfile.mkstemp(dir=self.paths.folder)
        path = Path(name)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            yield path
        finally:
            path.unlink(missing_ok=True)


class _Applied:
    """What `apply` returns: asked for in a thread, as whoever waits has little patience."""

    def __init__(self, call: Callable[[], list[Any]]) -> None:
        pool = ThreadPoolExecutor(1)
        self._future = pool.submit(call)
        pool.shutdown(wait=False)

    def get(self, timeout: float | None = None) -> list[Any]:
        try:
            return self._future.result(timeout)
        except Late:
            raise TimeoutError("it did not answer in time") from None


def _left(until: float) -> str:
    """How much time a job has left, in words."""
    minutes = max(0, int((until - time.time()) // 60))
    return f"{minutes // 60}:{minutes % 60:02} h left" if minutes else "less than a minute left"


STOPPED = "cluster {name} has been stopped: `%cluster start --site …` starts a new one"
OVER = "cluster {name} is over: {why}; `%cluster start --site …` starts a new one"
UNKEPT = (
    "the process that kept cluster {name} here is gone; its job may go on: "
    "`%cluster attach {name}` takes it up again"
)
SLOW = "cluster {name} did not answer `{do}` within {seconds:.0f} s"
NO_KEEPER = "the process that keeps the cluster from here did not start; {path} ends with:\n{log}"
NOT_YET = "cluster {name} cannot be used yet: {words}; `%cluster attach {name}` waits until it can"
