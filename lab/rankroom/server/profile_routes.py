"""Profiles and collectives for browsers, which request them repeatedly while a run is live."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from rankroom.record.model import RunInfo
from rankroom.record.store import Store

if TYPE_CHECKING:  # importing it loads NumPy, which most servers never need
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.profile.of_run import GrowingProfile

MAX_CACHED_RUNS = 8  # live runs whose spans stay in memory for the next request


class Profiles:
    """The profiles of runs, each computed once for all browsers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: OrderedDict[str, GrowingProfile] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: RunInfo) -> Profile:
        """Return the profile of the run so far."""
        from rankroom.analysis.profile.of_run import stored_profile

        kept = None if run.state == "running" else stored_profile(self._store.paths(run.id))
        if kept is None:
            return self._growing(run).refresh(run)
        with self._lock:
            self._live.pop(run.id, None)
        return kept

    def collectives(self, run: RunInfo) -> str:
        """Return which spans of the run so far belong to the same collective, as JSON."""
        from rankroom.analysis.collectives import CATEGORY, Collectives
        from rankroom.analysis.timeline import Timeline

        if run.state == "running":
            found = self._growing(run).collectives(run)
        else:
            events = self._store.paths(run.id).events
            found = Collectives(Timeline.read(run, events, only=CATEGORY))
        return json.dumps(found.to_json(), separators=(",", ":"))

    def _growing(self, run: RunInfo) -> GrowingProfile:
        from rankroom.analysis.profile.of_run import GrowingProfile

        with self._lock:
            growing = self._live.pop(run.id, None)
            if growing is None or not growing.is_current(run):
                growing = GrowingProfile(self._store.paths(run.id), run)
            self._live[run.id] = growing
            while len(self._live) > MAX_CACHED_RUNS:
                self._live.popitem(last=False)
        return growing
