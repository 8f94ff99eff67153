"""Warnings that the job's time will soon be over, each given once."""

from __future__ import annotations

import time

from rankroom.record.cluster_file import Allocation
from rankroom.text.amounts import duration

WARN_S = (600.0, 120.0)  # before the end of the job


class TimeLimit:
    """The warnings about a cluster's time limit that have not been given yet."""

    def __init__(self) -> None:
        self._told = float("inf")  # of WARN_S, the last one given

    def news(self, granted: Allocation | None) -> list[str]:
        """Return a warning if one is due now; it is given again after the limit was extended."""
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


SOON = (
    "the time limit of job {job} is reached at {at}, in {left}: the ranks end then, and their "
    "variables are lost"
)
