"""Profile a cell with its frameworks' profilers: operators and kernels become spans of the run.

A framework that is imported before the cell is profiled from the cell's start, one that the cell
imports from its import. Errors here are reported in one line, and the cell's result stays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from rankroom.rank.frameworks.tensorflow import tensorflow_profiler
from rankroom.rank.frameworks.torch import torch_profiler
from rankroom.rank.import_hooks import when_imported
from rankroom.reporting.spans import recorder

MAX_OPERATIONS = 100_000  # operators and kernels of one cell on one rank; the longest are kept
MAX_NAMES = 20_000  # distinct names of these


# An operation in a profile: category (op or kernel), name, start in nanoseconds since the epoch,
# duration in nanoseconds, thread.
Row = tuple[str, str, int, int, str]


class Profiler(Protocol):
    """The profiler of one framework, for one cell."""

    def start(self) -> None:
        """Start profiling. Raises what the framework raises."""

    def stop(self) -> None:
        """Stop profiling; called once, from the thread that started it."""

    def ops(self, most: int) -> tuple[Iterable[Row], int]:
        """Return the `most` longest operations, and the number of all of them."""


_KINDS: dict[str, Callable[[], Profiler]] = {
    "torch": torch_profiler.TorchProfiler,
    "tensorflow": tensorflow_profiler.TensorFlowProfiler,
}


@contextlib.contextmanager
def profiled(wanted: bool) -> Iterator[None]:
    """Profile what runs in the block, if `wanted`."""
    if not wanted:
        yield
        return
    profile = Profile()
    try:
        profile.begin()
        yield
    finally:
        try:
            profile.end()
        except KeyboardInterrupt:
            # The cell itself is over: this interrupt does not change how it ended.
            say(PROFILE_INTERRUPTED)


class Profile:
    """The profile of one cell on this rank."""

    present: Profile | None = None

    def __init__(self) -> None:
        self._on: dict[str, Profiler] = {}
        self._failed = False

    @classmethod
    def install(cls) -> None:
        """Hook the imports of the frameworks, so that those that a cell imports are profiled."""
        for name in _KINDS:
            when_imported(name, cls._imported)

    @classmethod
    def _imported(cls, module: ModuleType) -> None:
        if cls.present is not None:
            cls.present._start(module.__name__)

    def begin(self) -> None:
        """Start the profilers of the frameworks that are imported already."""
        Profile.present = self
        for name in _KINDS:
            if name in sys.modules:
                self._start(name)

    def _start(self, name: str) -> None:
        profiler = _KINDS[name]()
        with self._saying(name):
            self._on[name] = profiler  # before its start, which an interrupt may end
            try:
                profiler.start()
            except Exception:
                del self._on[name]
                raise

    def end(self) -> None:
        """Stop the profilers, and turn the operators of the cell into spans."""
        Profile.present = None
        if not self._on and not self._failed:
            say(NOTHING_PROFILED)
        stopped = {}
        for name, profiler in self._on.items():
            with self._saying(name):
                profiler.stop()
                stopped[name] = profiler
        share = MAX_OPERATIONS // max(1, len(stopped))
        for name, profiler in stopped.items():
            with self._saying(name):
                ops, count = profiler.ops(share)
                kept = _add(ops)
                if count > kept:
                    say(OPERATIONS_OMITTED.format(kept=kept, count=count, name=name))
        self._on.clear()

    @contextlib.contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            say(PROFILER_FAILED.format(name=name, why=f"{type(error).__name__}: {error}"[:300]))


def _add(rows: Iterable[Row]) -> int:
    """Turn `rows` into spans; return how many there are."""
    numbers: dict[tuple[str, str], int] = {}
    count = 0
    for cat, name, start, dur, thread in rows:
        number = numbers.get((name, thread))
        if number is None:
            name_ = name[:200] if len(numbers) < MAX_NAMES else "(one of too many names)"
            number = recorder.number(("op", name_, thread), partial(_about, name_, thread))
            numbers[name, thread] = number
        recorder.add(cat, number, start // 1000, dur // 1000)
        count += 1
    return count


def _about(name: str, thread: str) -> dict[str, Any]:
    return {"name": name, "thread": thread}


def say(words: str) -> None:
    """Print a line to the rank's log."""
    print(words, file=sys.stderr)


NOTHING_PROFILED = (
    "--profile: this rank has imported neither torch nor tensorflow, so nothing was profiled"
)
PROFILER_FAILED = "--profile: {name} could not be profiled ({why})"
PROFILE_INTERRUPTED = "--profile: interrupted, so the profile is incomplete"
OPERATIONS_OMITTED = (
    "--profile: only the {kept:,} longest of {count:,} operations of {name} were kept"
)
