"""The clocks of one run: by how much this host's was set during it, and its ranks' offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from rankroom.record.model import Clock, RankInfo
from rankroom.supervisor.clock import hull

MIN_CLOCK_CHANGE_US = 5_000_000  # smaller changes are ordinary corrections of a clock


class RunClock:
    """Tells by how much this host's clock was set since this object was made."""

    def __init__(self) -> None:
        self._less_boot = _less_boot_us()

    def set_by(self) -> int:
        """Return by how many microseconds the clock was set during the run."""
        by = _less_boot_us() - self._less_boot
        return by if abs(by) >= MIN_CLOCK_CHANGE_US else 0


def widen(ranks: Iterable[RankInfo], clocks: Mapping[int, Clock]) -> None:
    """Widen the recorded clocks of ranks to cover `clocks` as well, which were found later."""
    for rank in ranks:
        if fresh := clocks.get(rank.rank):
            rank.clock = hull(rank.clock, fresh) if rank.clock else fresh


def _less_boot_us() -> int:
    """Return wall-clock time minus time since boot; it changes only when the clock is set."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1000


CLOCK_SET = (
    "the system clock was changed by {seconds:+.0f} s during this run: the times of its events are "
    "wrong by up to that much"
)
