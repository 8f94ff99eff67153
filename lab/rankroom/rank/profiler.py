"""A cell under the profilers of the frameworks it uses: operators and kernels as spans of the run.

A framework that is there when the cell starts is profiled from then on, one that the cell imports
from its import on. Whatever goes wrong here is said in a line, and the cell's result stays.
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

MOST = 100_000  # operators and kernels of one cell on one rank; the longest are kept
MOST_NAMES = 20_000  # different ones


# What a profiler saw: category (op or kernel), name, start in nanoseconds since the epoch, duration
# in nanoseconds, thread.
Row = tuple[str, str, int, int, str]


class Profiler(Protocol):
    """One framework's profiler, on for a cell."""

    def start(self) -> None:
        """Begin. Raises what the framework raises."""

    def stop(self) -> None:
        """End; called once, from the thread that began."""

    def ops(self, most: int) -> tuple[Iterable[Row], int]:
        """The `most` longest of what it saw, and how many there were."""


_KINDS: dict[str, Callable[[], Profiler]] = {
    "torch": torch_profiler.Torch,
    "tensorflow": tensorflow_profiler.TensorFlow,
}


@contextlib.contextmanager
def profiled(wanted: bool) -> Iterator[None]:
    """Profile what runs in the block, if that is `wanted`."""
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
            # The cell itself is over: it ends as it would have.
            say(INTERRUPTED)


class Profile:
    """The profile of one cell on this rank."""

    present: Profile | None = None

    def __init__(self) -> None:
        self._on: dict[str, Profiler] = {}
        self._failed = False

    @classmethod
    def install(cls) -> None:
        """Notice frameworks that cells import."""
        for name in _KINDS:
            when_imported(name, cls._imported)

    @classmethod
    def _imported(cls, module: ModuleType) -> None:
        if cls.present is not None:
            cls.present._start(module.__name__)

    def begin(self) -> None:
        """The cell starts."""
        Profile.present = self
        for name in _KINDS:
            if name in sys.modules:
                self._start(name)

    def _start(self, name: str) -> None:
        profiler = _KINDS[name]()
        with self._saying(name):
            self._on[name] = profiler  # also where an interrupt ends its start
            try:
                profiler.start()
            except Exception:
                del self._on[name]
                raise

    def end(self) -> None:
        """The cell is over: its operators become spans."""
        Profile.present = None
        if not self._on and not self._failed:
            say(NOTHING)
        stopped = {}
        for name, profiler in self._on.items():
            with self._saying(name):
                profiler.stop()
                stopped[name] = profiler
        share = MOST // max(1, len(stopped))
        for name, profiler in stopped.items():
            with self._saying(name):
                ops, count = profiler.ops(share)
                kept = _add(ops)
                if count > kept:
                    say(LEFT_OUT.format(kept=kept, count=count, name=name))
        self._on.clear()

    @contextlib.contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            say(FAILED.format(name=name, why=f"{type(error).__name__}: {error}"[:300]))


def _add(rows: Iterable[Row]) -> int:
    """Make spans of `rows`; returns how many they are."""
    numbers: dict[tuple[str, str], int] = {}
    count = 0
    for cat, name, start, dur, thread in rows:
        number = numbers.get((name, thread))
        if number is None:
            name_ = name[:200] if len(numbers) < MOST_NAMES else "(one of too many names)"
            number = recorder.number(("op", name_, thread), partial(_about, name_, thread))
            numbers[name, thread] = number
        recorder.add(cat, number, start // 1000, dur // 1000)
        count += 1
    return count


def _about(name: str, thread: str) -> dict[str, Any]:
    return {"name": name, "thread": thread}


def say(words: str) -> None:
    """One line of ours in the rank's log."""
    print(words, file=sys.stderr)


NOTHING = "--profile: this rank has imported neither torch nor tensorflow, so nothing was profiled"
FAILED = "--profile: {name} could not be profiled ({why})"
INTERRUPTED = "--profile: interrupted, the profile is not complete"
LEFT_OUT = "--profile: the {kept:,} longest of {count:,} operations of {name} were kept"
