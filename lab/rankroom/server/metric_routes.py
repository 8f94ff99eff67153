"""Curves for browsers, which request them repeatedly while a run is live or the user pans."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from rankroom.record.model import RunInfo
from rankroom.record.store import Store

if TYPE_CHECKING:  # importing it loads NumPy, which most servers never need
    from rankroom.analysis.metrics.curve_answer import CurveRequest
    from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics, StoredMetrics

MAX_CACHED_RUNS = 8  # runs whose curves stay in memory for the next request
MAX_CACHED_POINTS = 12_000_000  # points of all of them: some 300 MB


class MetricCurves:
    """The metrics of runs, each read once for all browsers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._whole: OrderedDict[str, GrowingMetrics] = OrderedDict()
        self._kept: OrderedDict[str, tuple[int, StoredMetrics]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: RunInfo, asked: CurveRequest) -> str:
        """Return the curves of the run so far, as JSON."""
        from rankroom.analysis.metrics.curve_answer import curve_reply, is_detailed_enough

        kept = None if run.state == "running" or run.id in self._whole else self._coarse(run)
        if kept is not None and is_detailed_enough(kept.metrics, asked):
            return json.dumps(curve_reply(kept, asked, run.state), separators=(",", ":"))
        if kept is not None:
            low = -math.inf if asked.begin is None else asked.begin
            high = math.inf if asked.end is None else asked.end
            part = kept.part(self._store.paths(run.id).events, run, asked.axis, low, high)
            if part is not None:
                return json.dumps(curve_reply(kept, asked, run.state, part), separators=(",", ":"))
        growing = self._growing(run)
        with growing.lock:
            growing.refresh()
            said = curve_reply(growing, asked, run.state)
        self._forget()
        return json.dumps(said, separators=(",", ":"))

    def _coarse(self, run: RunInfo) -> StoredMetrics | None:
        """Return the metrics that were stored when the run ended; None if there are none."""
        from rankroom.analysis.metrics.metrics_of_run import stored_metrics

        paths = self._store.paths(run.id)
        try:
            written = paths.metrics.stat().st_mtime_ns
        except OSError:
            return None
        with self._lock:
            known = self._kept.get(run.id)
        if known is not None and known[0] == written:
            return known[1]
        found = stored_metrics(paths, run)
        if found is not None:
            with self._lock:
                self._kept[run.id] = written, found
                while len(self._kept) > MAX_CACHED_RUNS:
                    self._kept.popitem(last=False)
        return found

    def _growing(self, run: RunInfo) -> GrowingMetrics:
        from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics

        with self._lock:
            growing = self._whole.pop(run.id, None)
            if growing is None or not growing.is_current(run):
                growing = GrowingMetrics(self._store.paths(run.id), run)
            self._whole[run.id] = growing
        return growing

    def _forget(self) -> None:
        """Drop the curves that were requested longest ago while there are too many."""
        with self._lock:
            while len(self._whole) > 1 and (
                len(self._whole) > MAX_CACHED_RUNS
                or sum(each.metrics.held for each in self._whole.values()) > MAX_CACHED_POINTS
            ):
                self._whole.popitem(last=False)
