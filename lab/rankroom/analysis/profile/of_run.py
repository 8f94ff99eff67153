"""The profile of a run in a store, computed once for all its readers.

When a run has ended, its profile is stored beside its events as profile.json and, if the run is
long, its overview as well. Readers never write them: a missing profile, as in records of earlier
versions, is computed, and a missing overview is done without.
"""

from __future__ import annotations

import contextlib
import json
import threading

from rankroom.analysis import overview
from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile.report import Profile
from rankroom.analysis.timeline import Timeline
from rankroom.record.model import Clock, RunInfo
from rankroom.record.store import RecordPaths, Store
from rankroom.record.tail import lines_after, only_log_after
from rankroom.system.files import write_atomically

RULES = 5  # version of docs/profile-rules.md; a profile.json of another version is ignored


def profile_of(store: Store, run: RunInfo) -> Profile:
    """Return the stored profile, or compute it from the events so far."""
    paths = store.paths(run.id)
    kept = None if run.state == "running" else stored_profile(paths)
    return kept or GrowingProfile(paths, run).refresh(run)


def write_profile(store: Store, run: RunInfo) -> None:
    """Store the profile of a run that has just ended, and its overview if it has many spans.

    Raises OSError if they cannot be written.
    """
    paths = store.paths(run.id)
    growing = GrowingProfile(paths, run)
    profile = growing.refresh(run)
    kept = {"rules": RULES, "read": growing.read, **profile.to_json()}
    write_atomically(paths.profile, json.dumps(kept) + "\n")
    if lines := growing.overview(run):
        write_atomically(paths.overview, lines)


class GrowingProfile:
    """The profile of a live run; each call reads what is new, from byte `read` of its events on."""

    def __init__(self, paths: RecordPaths, run: RunInfo) -> None:
        self.read = 0
        self._events = paths.events
        self._timeline = Timeline(run)
        self._clocks = _clocks(run)
        self._seen: object = None
        self._collectives: Collectives | None = None
        self._profile: Profile | None = None
        self._lock = threading.Lock()

    def is_current(self, run: RunInfo) -> bool:
        """False if the data read is outdated: clocks have changed, or events been replaced."""
        with contextlib.suppress(OSError):
            if self._events.stat().st_size < self.read:
                return False
        return _clocks(run) == self._clocks

    def refresh(self, run: RunInfo) -> Profile:
        """Return the profile of all complete lines so far."""
        with self._lock:
            collectives = self._matched(run)
            if self._profile is None:
                self._profile = Profile.of(self._timeline, collectives)
            else:  # there may be new samples without new spans
                self._profile = self._profile.with_memory(self._timeline)
            return self._profile

    def collectives(self, run: RunInfo) -> Collectives:
        """Return the collectives of all complete lines so far."""
        with self._lock:
            return self._matched(run)

    def overview(self, run: RunInfo) -> str:
        """Return the overview of all complete lines so far; empty if there are few spans."""
        with self._lock:
            collectives = self._matched(run)
            if self._timeline.count < overview.MIN_SPANS:
                return ""
            return "".join(overview.overview_lines(self._timeline, collectives, self.read))

    def _matched(self, run: RunInfo) -> Collectives:
        self._timeline.failed = Timeline(run).failed
        self._read_on()
        seen = self._timeline.version, self._timeline.failed
        if self._collectives is None or seen != self._seen:
            self._seen, self._profile = seen, None
            self._collectives = Collectives(self._timeline)
        return self._collectives

    def _read_on(self) -> None:
        for lines, at in lines_after(self._events, self.read):
            self._timeline.take(lines)
            self.read = at


def stored_profile(paths: RecordPaths) -> Profile | None:
    """Return what profile.json holds; None unless it covers all events and follows our rules."""
    try:
        kept = json.loads(paths.profile.read_bytes())
        if kept["rules"] == RULES and only_log_after(paths.events, kept["read"]):
            return Profile.from_json(kept)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


def stored_overview(paths: RecordPaths) -> bytes:
    """Return what overview.jsonl holds, under the same conditions; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        lines = paths.overview.read_bytes()
        head = json.loads(lines[: lines.index(b"\n")])
        if head["rules"] == overview.RULES and only_log_after(paths.events, head["read"]):
            return lines
    return b""


def _clocks(run: RunInfo) -> list[tuple[int, int, int]]:
    clocks = ((rank.rank, rank.clock or Clock(0, 0)) for rank in run.ranks)
    return [(rank, clock.offset, clock.error) for rank, clock in clocks]
