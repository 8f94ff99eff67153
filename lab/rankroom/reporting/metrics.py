"""Metrics that user code reports of its training: numbers by name and step, in columns of points.

`log` is called in each step of a training loop, so it only stores its arguments; names, columns and
the thinning of long runs are handled when the rank reports, as with spans. A loop that calls it too
often between two reports does that work itself now and then, which bounds memory.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from operator import sub
from time import time_ns
from typing import Any, NamedTuple

from rankroom.reporting import spans
from rankroom.reporting.log_metrics import PREFIX

MAX_NAMES = 10_000  # of a rank in one run
LONGEST_NAME = 200  # characters
MAX_STORED_CALLS = 20_000  # calls stored before their points are sorted in
MAX_NOT_A_NUMBER_NOTES = 10  # names for which a note says that a value was not a number
GPU_READ_TIMEOUT_S = 1.0  # timeout at the end of a run, for values that a GPU has not computed yet
_MAX_EXACT_INT = 1 << 53  # larger integers are stored as floats
_NUMBER_TYPES = (float, int)
_INFINITY_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}
_GPUS = ("cuda", "gpu", "xpu", "mps", "tpu")

Point = tuple[int, Any, int, Any]  # name, step, microseconds since the epoch, value
Call = tuple[int, Any, Mapping[str, Any]]  # nanoseconds since the epoch, step, values by name


class _Strange(NamedTuple):
    """Stands for a value that is not a number; `kind` is its type."""

    kind: str


class _OnGpu(NamedTuple):
    """A value that a GPU may not have computed yet; `read` waits for it."""

    read: Callable[[], Any]


class _Logged(dict[str, Any]):
    """Values found in a log, not reported by user code."""


class MetricRecorder:
    """The points of the current run that have not been reported yet."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may log while its own thread holds the lock.
        self._sorting = threading.RLock()
        self.calls: list[Call] = []  # never replaced by another list
        self.keep = self.calls.append
        self._points: list[Point] = []
        self._on_gpu: list[tuple[int, Any, int, _OnGpu]] = []
        self._first = 0  # added to the names' numbers when they are reported
        self._numbers: dict[str, int] = {}
        self._counts: list[int] = []  # points so far, by the name's number
        self._told = 0  # the number of names that have been reported
        self._strange: set[str] = set()
        self._run = 0
        self._is_sorting = False
        self._fetching: threading.Thread | None = None
        self._read_count = 0  # values that were read from a GPU
        self._is_used = False  # whether user code reported metrics: then the log's are ignored

    def begin(self, starts: int = 0) -> None:
        """Start a run, with a new table of names.

        `starts` is how many earlier processes of this rank have begun tables in this run; the
        numbers of these stay valid.
        """
        with self._sorting:
            self._first = starts * MAX_NAMES
            self.calls.clear()
            self._points.clear()
            self._on_gpu.clear()
            self._numbers.clear()
            self._counts.clear()
            self._strange.clear()
            self._told = 0
            self._run += 1
            self._fetching = None
            self._is_used = False

    def add(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Add one value per name, timed now; the caller must not change `values` later."""
        for value in values.values():
            if type(value) not in _NUMBER_TYPES:
                values = {name: _snapshot(each) for name, each in values.items()}
                break
        if step is not None and type(step) is not int:
            step = _as_step(step)
        self.keep((time_ns(), step, values))
        if len(self.calls) > MAX_STORED_CALLS:
            self.sort_in()

    def add_logged(self, t: int, step: int, values: Mapping[str, float]) -> None:
        """Add values found in a log line written at `t`, in microseconds since the epoch."""
        self.keep((1000 * t, step, _Logged(values)))

    def take(self, zero: int) -> Iterator[dict[str, Any]]:
        """Yield the fields of events with all points since the last call; `zero` is the run's start
        in microseconds since the epoch."""
        self.sort_in()
        self._fetch()
        # Other threads may append meanwhile: each of these statements is atomic to them.
        points = self._points[:]
        del self._points[: len(points)]
        for begin in range(0, len(points), spans.MAX_SPANS_PER_EVENT):
            names, steps, times, values = zip(
                *points[begin : begin + spans.MAX_SPANS_PER_EVENT], strict=True
            )
            fields: dict[str, Any] = {}
            if len(self._numbers) > self._told:
                first = self._first + self._told
                fields = {"from": first, "define": list(self._numbers)[self._told :]}
                self._told += len(fields["define"])
            if self._first:
                names = tuple(self._first + number for number in names)
            apart = list(map(sub, times, (zero, *times)))
            yield fields | {"name": names, "step": steps, "at": apart, "value": values}

    def settle(self) -> None:
        """At the run's end, wait for the values that are still on a GPU, unless it is stuck."""
        self.sort_in()
        while self._on_gpu or self._fetching is not None:
            self._fetch()
            fetching = self._fetching
            if fetching is None:
                is_stuck = bool(self._on_gpu)  # no thread could be started
            else:
                before = self._read_count
                fetching.join(GPU_READ_TIMEOUT_S)
                is_stuck = fetching.is_alive()
                if is_stuck and self._read_count > before:
                    continue  # it is only behind
            if is_stuck:
                spans.recorder.note(ON_GPU)
                return
            self._fetching = None

    def leave(self) -> None:
        """Drop all points: this process was forked from a rank, and its points are not read."""
        self._sorting = threading.RLock()
        self._is_sorting = False
        self.begin()

    def sort_in(self) -> None:
        """Turn all calls so far into points, with the numbers of their names and their steps."""
        with self._sorting:
            if self._is_sorting:  # in a signal handler, amid this: its calls come later, in order
                return
            self._is_sorting = True
            try:
                self._sort_calls()
            finally:
                self._is_sorting = False

    def _sort_calls(self) -> None:
        calls = self.calls[:]
        del self.calls[: len(calls)]
        for ns, step, values in calls:
            if type(values) is not _Logged:
                self._is_used = True
            elif self._is_used:
                continue
            else:
                values = {f"{PREFIX}{name}": value for name, value in values.items()}
            for name, value in values.items():
                self._sort_one(name, step, ns // 1000, value)

    def _sort_one(self, name: str, step: Any, t: int, value: Any) -> None:
        if type(value) is _Strange:
            self._remark(name, value.kind)
            return
        number = self._numbers.get(name)
        if number is None:
            number = self._number(name)
            if number is None:
                return
        seen = self._counts[number]
        self._counts[number] = seen + 1
        if seen >= spans.UNSAMPLED_SPANS:
            spans.recorder.note(THINNED.format(count=spans.UNSAMPLED_SPANS))
            if not spans.is_sampled("metrics", seen):
                return
        if step is None:
            if self._first:
                spans.recorder.note(COUNTED_AGAIN)
            step = seen
        elif not -_MAX_EXACT_INT < step < _MAX_EXACT_INT:
            spans.recorder.note(NO_STEP)
            step = seen
        if type(value) is _OnGpu:
            self._on_gpu.append((number, step, t, value))
        else:
            self._points.append((number, step, t, _plain(value)))

    def _number(self, name: str) -> int | None:
        """Return the number of a name, which may be new; None if there are too many names."""
        name = str(name)[:LONGEST_NAME]
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= MAX_NAMES:
                spans.recorder.note(TOO_MANY.format(count=MAX_NAMES))
                return None
            number = self._numbers[name] = len(self._numbers)
            self._counts.append(0)
        return number

    def _remark(self, name: str, kind: str) -> None:
        if name not in self._strange and len(self._strange) < MAX_NOT_A_NUMBER_NOTES:
            self._strange.add(name)
            spans.recorder.note(NO_NUMBER.format(name=name[:LONGEST_NAME], kind=kind))

    def _fetch(self) -> None:
        """Start a thread that waits for values on a GPU: no other may, as a GPU can be stuck."""
        if self._fetching is not None and self._fetching.is_alive():
            return
        self._fetching = None
        if self._on_gpu:
            with self._sorting:
                waiting, self._on_gpu = self._on_gpu, []
            thread = threading.Thread(target=self._read, args=(waiting, self._run), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started: the next report tries again
                with self._sorting:
                    self._on_gpu[:0] = waiting
            else:
                self._fetching = thread

    def _read(self, waiting: list[tuple[int, Any, int, _OnGpu]], run: int) -> None:
        names = list(self._numbers)
        for number, step, t, value in waiting:
            try:
                read = _plain(_as_number(value.read()))
            except Exception as error:
                read = _Strange(type(error).__name__)
            self._read_count += 1
            if run != self._run:
                return
            if isinstance(read, _Strange):
                self._remark(names[number], read.kind)
            else:
                self._points.append((number, step, t, read))


def _snapshot(value: Any) -> Any:
    """Return a value as it is now, because it may be changed in place later."""
    if type(value) in _NUMBER_TYPES:
        return value
    try:
        if hasattr(value, "to_local") and hasattr(value, "placements"):  # a DTensor
            if not all(each.is_replicate() for each in value.placements):
                # To read it would be a collective, and other ranks may not log it.
                return _Strange("DTensor in parts, so log its full_tensor()")
            value = value.to_local()
        device = getattr(value, "device", None)
        if device is not None:
            where = str(getattr(device, "type", device)).lower()
            if any(gpu in where for gpu in _GPUS):
                return _copied(value)
        return _as_number(value)
    except Exception:
        return _Strange(type(value).__name__)


def _copied(value: Any) -> Any:
    """Copy a value on its GPU, without waiting for that."""
    if hasattr(value, "detach"):  # PyTorch
        if value.numel() != 1:
            return _Strange(f"{type(value).__name__} of {value.numel()} numbers")
        copy = value.detach().clone()
        if not copy.is_cuda:
            return _OnGpu(copy.item)
        cuda = sys.modules["torch"].cuda
        copied = cuda.Event()
        # The thread that reads the copy uses another stream.
        copied.record(cuda.current_stream(copy.device))
        return _OnGpu(lambda: (copied.synchronize(), copy.item())[1])
    if hasattr(value, "read_value"):  # a variable of TensorFlow; its tensors never change
        value = value.read_value()
    return _OnGpu(lambda: value)


def _as_number(value: Any) -> Any:
    """Return a value as a number; `_Strange` if it is not one."""
    if isinstance(value, (str, bytes, bytearray)):  # float() would parse them
        return _Strange(type(value).__name__)
    if isinstance(value, int):  # True and False, too
        return int(value)
    try:
        item = getattr(value, "item", None)  # NumPy's and PyTorch's, of any shape with one number
        return float(value if item is None else item())
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:
        return _Strange(type(value).__name__)


def _as_step(step: Any) -> Any:
    """Return a user's step as a number; None, so that points are counted, if it is invalid."""
    number = _as_number(step)
    if isinstance(number, _Strange) or not math.isfinite(number):
        spans.recorder.note(NO_STEP)
        return None
    return int(number) if number == int(number) else number


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if type(value) is _Strange:
        return value
    if type(value) is int:
        if -_MAX_EXACT_INT < value < _MAX_EXACT_INT:
            return value
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    elif type(value) is not float:
        value = float(value)
    if math.isfinite(value):
        return value
    return _INFINITY_NAMES.get(value, "NaN")


points = MetricRecorder()
_spans, _calls, _keep = spans.recorder, points.calls, points.keep
os.register_at_fork(after_in_child=points.leave)


def log(*, step: Any = None, **values: Any) -> None:
    """Report metrics of this rank, such as `rankroom.log(loss=loss, acc=acc, step=step)`.

    They appear live as curves in the view's tab Metrics, and as rows in `run.metrics()`. Pass a
    name that is not a Python identifier as `log(**{"val/loss": …})`. Without `step`, the values of
    each name are counted from 0. Values are numbers: Python's, NumPy's, or one-element tensors of
    PyTorch or TensorFlow. This does not wait for a GPU: a tensor there is copied on the GPU, and
    the copy is read when the rank reports, about once a second. Outside of ranks this does nothing.
    """
    if not _spans.on:
        return
    for value in values.values():
        if type(value) is not float:
            points.add(values, step)
            return
    # Inlined from `add`: within a training step, each Python call takes long.
    if (step is None or type(step) is int) and len(_calls) < MAX_STORED_CALLS:
        _keep((time_ns(), step, values))
    else:
        points.add(values, step)


NO_NUMBER = "metric {name!r}: values that are not numbers ({kind}) are left out of its curve"
NO_STEP = (
    "metrics: a step was not a number, or was too large; values were numbered in order instead"
)
TOO_MANY = "metrics have more than {count:,} names: values of further names are not recorded"
THINNED = (
    "a metric has more than {count:,} points on a rank: beyond those, its curve has only some "
    "stretches"
)
ON_GPU = "metrics: the last values could not be read from the GPU in time, and are not kept"
COUNTED_AGAIN = (
    "metrics without a step are numbered from 0 again on a restarted rank: pass `step` to "
    "`rankroom.log`"
)
