"""Profile a cell with torch.profiler: operators on the CPU, and kernels on a GPU, also NCCL's."""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Iterable
from typing import Any

from rankroom.rank.frameworks.torch import torch_internals

Row = tuple[str, str, int, int, str]
KINETO_SILENT = "6"  # above the level of all of its library's messages


class TorchProfiler:
    """torch's profiler, whose times are already in nanoseconds since the epoch."""

    def start(self) -> None:
        """Start profiling. Raises RuntimeError if the user's own profiler is running."""
        torch: Any = sys.modules["torch"]
        # Otherwise, its library writes to stderr whenever it starts and stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_SILENT)
        if torch_internals.profiler_is_on(torch):
            raise RuntimeError(PROFILER_RUNNING)  # starting another would end it
        activity = torch.profiler.ProfilerActivity
        activities = [activity.CPU]
        if torch.cuda.is_available():
            activities.append(activity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def stop(self) -> None:
        """Stop profiling; called in the thread that started it."""
        self._profiler.stop()

    def ops(self, most: int) -> tuple[Iterable[Row], int]:
        """Return the `most` longest operators and kernels, and how many there were in all.

        Raises RuntimeError if there were none.
        """
        # The profiler's own events() builds a tree of Python objects first, which takes seconds.
        events = self._profiler.profiler.kineto_results.events()
        count = len(events)
        if not events:
            raise RuntimeError(NO_EVENTS)
        if count > most:
            events = heapq.nlargest(most, events, key=lambda each: _start_and_duration(each)[1])
        return map(_row, events), count


def _row(event: Any) -> Row:
    if event.device_type().name == "CPU":
        cat, thread = "op", f"thread {event.start_thread_id()}"
    else:
        cat, thread = "kernel", f"GPU {event.device_index()} stream {event.device_resource_id()}"
    return cat, event.name(), *_start_and_duration(event), thread


def _start_and_duration(event: Any) -> tuple[int, int]:
    """Return both in nanoseconds; before PyTorch 2.4, events have them in microseconds."""
    if hasattr(event, "start_ns"):
        return event.start_ns(), event.duration_ns()
    return 1000 * event.start_us(), 1000 * event.duration_us()


PROFILER_RUNNING = "your own profiler is running"
NO_EVENTS = "no events were recorded: did the cell start its own profiler?"
