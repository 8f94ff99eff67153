"""Warnings that the job's time will be over, each said once."""

from __future__ import annotations

import time

from rankroom.record.cluster_file import Allocation
from rankroom.text.amounts import duration

WARN_S = (600.0, 120.0)  # so long before


class TimeLimit:
    """What is to be said of a cluster's time limit, and has not been said yet."""

    def __init__(self) -> None:
        self._told = float("inf")  # of WARN_S, which was said last

    def news(self, granted: Allocation | None) -> list[str]:
        """A warning, if one is due now; a limit that was moved away is warned of again."""
        if granted is None or not granted.until:
            return []
        left = granted.until - time.time()
        due = min((each for each in WARN_S if left <= each), default=float("inf"))
        told, self._told = self._told, due
        if due >= told:
            return []
        at = time.strftime("%H:%M", time.localtime(granted.until))
        left_words = duration(round(max(0.0, left) * 1e6))
        return [SOON.format(job=granted.job, at=at, left=left_words)]


SOON = "the time of job {job} is over at {at}, in {left}: the ranks end then, with their variables"
