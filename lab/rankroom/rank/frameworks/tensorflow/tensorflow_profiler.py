"""Profile a cell with TensorFlow's profiler: operations on each thread, and kernels on a GPU.

It writes a file in XPlane format: planes (the host, each device) of lines (threads, streams) of
events. Times are relative to the start of the profiler.
"""

from __future__ import annotations

import heapq
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = tuple[str, str, int, int, str]
# A statistic of the task's plane, in nanoseconds since the epoch.
_START_TIME_STAT = "profile_start_time"


class TensorFlowProfiler:
    """TensorFlow's profiler; results are read from a temporary folder, which is then removed."""

    def start(self) -> None:
        """Start profiling. Raises AlreadyExistsError if the user's own profiler is running."""
        tensorflow: Any = sys.modules["tensorflow"]
        torch: Any = sys.modules.get("torch")
        # torch's profiler may be running, and two cannot profile the same GPU.
        taken = torch is not None and torch.cuda.is_available()
        profiler = tensorflow.profiler.experimental
        options = profiler.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0 if taken else 1
        )
        self._folder = Path(tempfile.mkdtemp(prefix="rankroom-profile-"))
        try:
            profiler.start(str(self._folder), options)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def stop(self) -> None:
        """Stop profiling, and read the results."""
        tensorflow: Any = sys.modules["tensorflow"]
        try:
            tensorflow.profiler.experimental.stop()
            self._files = [file.read_bytes() for file in self._folder.rglob("*.xplane.pb")]
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def ops(self, most: int) -> tuple[Iterable[Row], int]:
        """Return the `most` longest operations and kernels, and how many there were in all."""
        files, self._files = self._files, []
        rows = [row for file in files for row in rows_of(file)]
        count = len(rows)
        if count > most:
            rows = heapq.nlargest(most, rows, key=lambda row: row[3])
        return rows, count


def rows_of(file: bytes) -> Iterator[Row]:
    """Yield the events of an XPlane file. Raises ValueError if it lacks the profiler's start."""
    # A part of TensorFlow, which the cell has imported.
    xplane: Any = importlib.import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    space = xplane.XSpace.FromString(file)
    zero = _started(space)
    for plane in space.planes:
        cat = "kernel" if plane.name.startswith("/device:") else "op"
        names = {number: about.name for number, about in plane.event_metadata.items()}
        for line in plane.lines:
            thread = f"{plane.name.removeprefix('/host:')} {line.display_name or line.name}"
            begin = zero + line.timestamp_ns
            for event in line.events:
                start = begin + event.offset_ps // 1000
                yield cat, names[event.metadata_id], start, event.duration_ps // 1000, thread


def _started(space: Any) -> int:
    for plane in space.planes:
        names = {number: about.name for number, about in plane.stat_metadata.items()}
        for stat in plane.stats:
            if names.get(stat.metadata_id) == _START_TIME_STAT:
                return int(stat.uint64_value or stat.int64_value)
    raise ValueError(f"the profile has no {_START_TIME_STAT}")
