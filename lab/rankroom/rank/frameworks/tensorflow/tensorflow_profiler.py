"""TensorFlow's profiler around a cell: its operations on each thread, and kernels of a GPU.

It writes a file in the format XPlane: planes (the host, each device) of lines (threads, streams) of
events, whose times count from when it was started.
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
_STARTED = "profile_start_time"  # a statistic of the plane about the task: epoch nanoseconds


class TensorFlow:
    """TensorFlow's profiler; its results pass through a folder that goes at once."""

    def start(self) -> None:
        """Begin to profile. Raises AlreadyExistsError if the user's own profiler is on."""
        tensorflow: Any = sys.modules["tensorflow"]
        torch: Any = sys.modules.get("torch")
        # Two cannot watch one GPU.
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
        """End."""
        tensorflow: Any = sys.modules["tensorflow"]
        try:
            tensorflow.profiler.experimental.stop()
            self._files = [file.read_bytes() for file in self._folder.rglob("*.xplane.pb")]
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def ops(self, most: int) -> tuple[Iterable[Row], int]:
        """The longest operations and kernels, and how many there were."""
        files, self._files = self._files, []
        rows = [row for file in files for row in rows_of(file)]
        count = len(rows)
        if count > most:
            rows = heapq.nlargest(most, rows, key=lambda row: row[3])
        return rows, count


def rows_of(file: bytes) -> Iterator[Row]:
    """What an XPlane file holds. Raises ValueError if it does not tell when it was started."""
    # It comes with TensorFlow; the cell has imported that.
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
            if names.get(stat.metadata_id) == _STARTED:
                return int(stat.uint64_value or stat.int64_value)
    raise ValueError(f"its file has no {_STARTED}")
