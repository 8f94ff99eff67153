"""The sides of a comparison: cells on two ranks with ipyparallel's %%px, and with Rankroom."""

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
    """A kernel with ranks, on which `rank` and `size` are defined."""

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
        """Start the ranks; return the seconds until the request was done."""
        return self.kernel.run(self.starting).ok().seconds

    def stop(self) -> None:
        """End the ranks."""
        self.kernel.run(self.stopping, timeout=30).ok()

    def cell(self, source: str, timeout: float = 120.0) -> Answer:
        """Run `source` on all ranks."""
        return self.kernel.run(f"{self.magic}\n{source}", timeout).ok()

    def rank_pids(self) -> list[int]:
        """Return the pid of each rank."""
        raise NotImplementedError

    def close(self) -> None:
        """End the ranks and the kernel."""
        try:
            with contextlib.suppress(Exception):
                self.stop()
        finally:
            self.kernel.close()


class Px(Side):
    """ipyparallel, started and used as in its documentation."""

    name = "%%px"
    magic = "%%px"
    loading = "import ipyparallel as ipp"
    stopping = "cluster.stop_cluster_sync(); rc.close()"

    @property
    def starting(self) -> str:  # type: ignore[override]
        # With this folder for its profile, what the cluster leaves behind can be recognised.
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
    """Rankroom, used through its magics."""

    name = "rankroom"
    magic = "%%distributed"
    loading = "%load_ext rankroom"
    stopping = "%cluster stop"

    @property
    def starting(self) -> str:  # type: ignore[override]
        return f"%cluster start --ranks {self.ranks}"

    @property
    def store(self) -> Store:
        """The store of its records."""
        return Store(self.kernel.home)

    def latest(self) -> RunInfo:
        """Return the run of the last cell, from its record."""
        return self.store.load(self.store.ids()[0])

    def lines(self, run: RunInfo) -> list[list[str]]:
        """Return all lines in the record of a run, by rank."""
        out: list[list[str]] = [[] for _ in range(self.ranks)]
        for line in lines_of(self.store.events(run.id)):
            out[line.rank].append(line.text)
        return out

    def rank_pids(self) -> list[int]:
        return self.kernel.value("[r.pid for r in __import__('rankroom').Cluster.current.ranks]")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for kernels and ranks. Processes that still run at its end are killed."""
    with tempfile.TemporaryDirectory(prefix="rankroom-bench-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            # ipyparallel's nannies take a moment to notice that their engine is gone.
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
    """Make the calls alternately, every other time in reverse; return `count` results of each."""
    out: list[list[T]] = [[] for _ in calls]
    for turn in range(count):
        order = list(enumerate(calls))
        for place, call in order if turn % 2 == 0 else reversed(order):
            out[place].append(call())
    return out
