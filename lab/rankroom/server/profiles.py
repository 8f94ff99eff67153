"""The profiles that browsers ask for, again and again while a run is live."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from rankroom.record.model import RunInfo
from rankroom.record.store import Store

if TYPE_CHECKING:  # importing it loads NumPy, which most servers never need
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.profile.of_run import GrowingProfile

MOST = 8  # live runs whose spans stay in memory for the next look


class Profiles:
    """One profile for all who look at a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: OrderedDict[str, GrowingProfile] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: RunInfo) -> Profile:
        """Where the time of the run went, by now."""
        from rankroom.analysis.profile.of_run import GrowingProfile, kept_profile

        paths = self._store.paths(run.id)
        kept = None if run.state == "running" else kept_profile(paths)
        with self._lock:
            growing = self._live.pop(run.id, None)
            if kept is not None:
                return kept
            if growing is None or not growing.fits(run):
                growing = GrowingProfile(paths, run)
            self._live[run.id] = growing
            while len(self._live) > MOST:
                self._live.popitem(last=False)
        return growing.look(run)
