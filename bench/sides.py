"""The two sides of every comparison: a cell on two ranks by ipyparallel's %%px, and by Rankroom."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from kernel import Answer, Kernel, processes
from rankroom.display.lines import lines_of
from rankroom.record.model import RunInfo
from rankroom.record.store import Store

RANKS = 2
T = TypeVar("T")


class Side:
    """A kernel with ranks. `rank` and `size` are defined on those of both sides."""

    name = ""
    magic = ""
    loading = ""
    starting = ""
    stopping = ""

    def __init__(self, folder: Path, ranks: int = RANKS) -> None:
        self.ranks = ranks
        self.kernel = Kernel(folder)
        try:
            self.kernel.run(self.loading).ok()
        except BaseException:
            self.kernel.close()
            raise

    def start(self) -> float:
        """Start the ranks; seconds until the request was done."""
        return self.kernel.run(self.starting).ok().seconds

    def stop(self) -> None:
        """End the ranks."""
        self.kernel.run(self.stopping, timeout=30).ok()

    def cell(self, source: str, timeout: float = 120.0) -> Answer:
        """Run `source` on both ranks."""
        return self.kernel.run(f"{self.magic}\n{source}", timeout).ok()

    def rank_pids(self) -> list[int]:
        """The process of each rank."""
        raise NotImplementedError

    def close(self) -> None:
        """End the ranks and the kernel."""
        try:
            with contextlib.suppress(Exception):
                self.stop()
        finally:
            self.kernel.close()


class Px(Side):
    """ipyparallel as its documentation starts and uses it."""

    name = "%%px"
    magic = "%%px"
    loading = "import ipyparallel as ipp"
    stopping = "cluster.stop_cluster_sync(); rc.close()"

    @property
    def starting(self) -> str:  # type: ignore[override]
        # The profile's folder is named so that what the cluster leaves behind can be recognised.
        folder = str(self.kernel.folder / "ipp")
        return (
            f"cluster = ipp.Cluster(n={self.ranks}, profile_dir={folder!r})\n"
            "rc = cluster.start_and_connect_sync()\n"
            "view = rc[:]; view.block = True; view.activate()\n"
            f"for i in rc.ids: rc[i].push(dict(rank=i, size={self.ranks}), block=True)"
        )

    def rank_pids(self) -> list[int]:
        return self.kernel.value("view.apply_sync(__import__('os').getpid)")


class Rankroom(Side):
    """Rankroom by its magics."""

    name = "rankroom"
    magic = "%%distributed"
    loading = "%load_ext rankroom"
    stopping = "%cluster stop"

    @property
    def starting(self) -> str:  # type: ignore[override]
        return f"%cluster start --ranks {self.ranks}"

    @property
    def store(self) -> Store:
        """Where its records are."""
        return Store(self.kernel.home)

    def latest(self) -> RunInfo:
        """The run of the last cell, from its record."""
        return self.store.load(self.store.ids()[0])

    def lines(self, run: RunInfo) -> list[list[str]]:
        """All lines in the record of a run, by rank."""
        out: list[list[str]] = [[] for _ in range(self.ranks)]
        for line in lines_of(self.store.events(run.id)):
            out[line.rank].append(line.text)
        return out

    def rank_pids(self) -> list[int]:
        return self.kernel.value("[r.pid for r in __import__('rankroom').Cluster.current.ranks]")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for kernels and ranks. Whatever still runs at its end is ended."""
    with tempfile.TemporaryDirectory(prefix="rankroom-bench-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            # Nannies take a moment to notice that their rank is gone.
            psutil.wait_procs(processes(Path(name)), timeout=3)
            for left in processes(Path(name)):
                print(f"left behind, ended: {left}", file=sys.stderr)
                with contextlib.suppress(psutil.Error):
                    left.kill()


@contextlib.contextmanager
def both() -> Iterator[tuple[Px, Rankroom]]:
    """Both sides, each with two ranks ready."""
    with workplace() as folder, contextlib.ExitStack() as stack:
        px = Px(folder / "px")
        stack.callback(px.close)
        rankroom = Rankroom(folder / "rankroom")
        stack.callback(rankroom.close)
        px.start()
        rankroom.start()
        yield px, rankroom


def alternate(count: int, *calls: Callable[[], T]) -> list[list[T]]:
    """`count` results of each call, taken in turns and each turn in the other order."""
    out: list[list[T]] = [[] for _ in calls]
    for turn in range(count):
        order = list(enumerate(calls))
        for place, call in order if turn % 2 == 0 else reversed(order):
            out[place].append(call())
    return out
