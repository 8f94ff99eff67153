"""What every cluster is to its user, wherever its ranks run and whoever carries its words there."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rankroom.errors import UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RankInfo, RunInfo, RunState
from rankroom.record.store import Store
from rankroom.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.timeline import Timeline


class AnyRun(Protocol):
    """One cell on some ranks, as its user sees it."""

    @property
    def info(self) -> RunInfo: ...
    @property
    def id(self) -> str: ...
    @property
    def state(self) -> RunState: ...
    @property
    def running(self) -> list[int]: ...
    @property
    def results(self) -> dict[int, str]: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def duration(self) -> float: ...
    @property
    def path(self) -> Path: ...
    def profile(self) -> Profile: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def interrupt(self) -> None: ...
    def release(self) -> None: ...


class AnyCluster(ABC):
    """Ranks that stay until stopped; this object is one process's connection to them."""

    current: ClassVar[AnyCluster | None] = None  # what this process last started or attached to

    def __init__(self, paths: ClusterPaths, info: ClusterInfo) -> None:
        self.paths = paths
        self.info = info
        self.store = Store()
        self._read = 0  # when the state that is known was written

    def make_current(self) -> None:
        """Have the cells of this process run on its ranks."""
        AnyCluster.current = self

    def close(self) -> None:
        """Let go of the cluster; its ranks stay."""
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
        """What the keeper last wrote about the cluster."""
        with contextlib.suppress(OSError):
            written = self.paths.info.stat().st_mtime_ns
            if written != self._read and (info := self.paths.read()) is not None:
                self.info, self._read = info, written
        return self.info

    @property
    @abstractmethod
    def alive(self) -> list[int]:
        """The ranks that answer now."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """True while the cluster is kept, whatever its ranks do."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True while a run of this process is on."""

    @property
    @abstractmethod
    def latest(self) -> AnyRun | None:
        """The run that this process last started, or that was on when it attached."""

    @abstractmethod
    def how_ended(self, rank: int, pid: int = 0) -> str:
        """How a rank's process (`pid`, or the latest) ended, in words, as its keeper saw it."""

    # -- what it does

    @abstractmethod
    def run(
        self,
        source: str,
        ranks: Sequence[int] | None = None,
        name: str | None = None,
        count: int | None = None,
        notes: Sequence[str] = (),
        profile: bool = False,
        own: bool = False,
    ) -> AnyRun:
        """Run `source` as a cell on all ranks, or on `ranks`; returns while it runs.

        `count` numbers the cell in tracebacks; `notes` go into the record; `profile` adds the
        operators that PyTorch's and TensorFlow's profilers see. With `own`, the ranks, which are
        0, 1, … then, are all there are for this cell: its collectives are theirs alone. Raises
        UsageError for ranks that are not there, NoClusterError if ranks have died, RankroomError
        if another run is on.
        """

    @abstractmethod
    def rejoin(self, seconds: float = ...) -> bool:
        """After a run in a world of its own, set up again now what all ranks had set up together,
        instead of with the next cell on all of them. False if that fails."""

    @abstractmethod
    def interrupt(self) -> None:
        """KeyboardInterrupt on every rank, whatever it runs and whoever started that.

        What is blocked in a collective is released a little later. Returns when all ranks are
        free, or after a few seconds.
        """

    @abstractmethod
    def release(self) -> str:
        """Let go of blocked collectives on all ranks; says which libraries let go.

        Raises UsageError when no rank runs anything.
        """

    @abstractmethod
    def stacks(self, ranks: Sequence[int] | None = None) -> dict[int, str]:
        """Where the threads of each rank are, as text; of a rank stuck in C code too."""

    @abstractmethod
    def push(self, names: dict[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Set variables on ranks."""

    @abstractmethod
    def pull(self, name: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """The value of a variable (or attribute, `a.b`) on each rank."""

    @abstractmethod
    def apply(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` comes to on one rank, by `get(timeout=…)`."""

    @abstractmethod
    def restart(self, ranks: Sequence[int]) -> None:
        """Restart some ranks, without their variables; the others keep theirs.

        Returns when they are ready. The ranks are wired again by the next cell on all of them.
        Raises UsageError for ranks that are not there or not ready, NoClusterError if the cluster
        is gone, StartError with the end of the log if one of them does not start.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the ranks and everything that was started with them; a run that is on ends, too."""

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
