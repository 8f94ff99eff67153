"""One cell on the ranks of a site, as its copy here tells it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankroom.errors import RecordError
from rankroom.record.model import Json, RunInfo, RunState
from rankroom.record.store import Store
from rankroom.run.run import ENDED

if TYPE_CHECKING:
    from rankroom.analysis.profile import Profile
    from rankroom.analysis.timeline import Timeline

LOOK_S = 0.01
RECHECK_S = 1.0  # between two looks at whether somebody still writes the copy
Ask = Callable[..., Json]


class FarRun:
    """A run that goes on on a site; it has the names of `run.Run`."""

    seen: list[Json] | None = None  # what is not kept is read from the record
    spans: list[bytes] | None = None

    def __init__(self, run_id: str, store: Store, ask: Ask) -> None:
        self.id = run_id
        self._store = store
        self._ask = ask
        self._paths = store.paths(run_id)
        self._info = store.load(run_id)
        self._changed = 0
        self._checked = time.monotonic()
        self._ended: set[int] = set()
        self._read = 0

    @property
    def info(self) -> RunInfo:
        """What its run.json says now."""
        if self._info.state != "running":
            return self._info
        now, changed = time.monotonic(), 0
        with contextlib.suppress(OSError):
            changed = self._paths.run.stat().st_mtime_ns
        if changed != self._changed or now > self._checked + RECHECK_S:
            self._changed, self._checked = changed, now
            with contextlib.suppress(RecordError):
                self._info = self._store.load(self.id)
        return self._info

    @property
    def source(self) -> str:
        return self._store.source(self.id)

    @property
    def state(self) -> RunState:
        return self.info.state

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        ranks = self.info.ranks
        if self._info.state != "running":
            return [rank.rank for rank in ranks if rank.state not in ENDED]
        self._see_ends()
        return [rank.rank for rank in ranks if rank.rank not in self._ended]

    @property
    def results(self) -> dict[int, str]:
        """The last expression's value on each rank that had one, as text."""
        found = {}
        for line in self._lines(b'{"kind":"display"'):
            event = json.loads(line)
            if event.get("result"):
                found[int(event["rank"])] = str(event["data"].get("text/plain", ""))
        return dict(sorted(found.items()))

    @property
    def timeline(self) -> Timeline:
        """What each rank did, and when; of a live run, as far as it has come here."""
        from rankroom.analysis.timeline import Timeline

        return Timeline.read(self.info, self._paths.events)

    def profile(self) -> Profile:
        """Where each rank's time went, and who kept whom waiting; of a live run, so far."""
        from rankroom.analysis.profile.of_run import profile_of

        return profile_of(self._store, self.info)

    @property
    def duration(self) -> float:
        """Seconds from start to end, or to now."""
        end = self.info.end or time.time_ns() // 1000
        return (end - self.info.start) / 1e6

    @property
    def path(self) -> Path:
        """The record's directory."""
        return self._paths.folder

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every rank has ended and all has come here; False if `timeout` s pass first.

        True, too, when nobody brings it here any more: its state is `lost` then.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while self.state == "running":
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(LOOK_S, left))
        return True

    def interrupt(self) -> None:
        """KeyboardInterrupt on the ranks that still run; blocked collectives are released."""
        self._ask("interrupt", run=self.id)

    def release(self) -> None:
        """Let go of blocked collectives on all ranks of the run, if any of them still runs."""
        self._ask("release", run=self.id)

    def __repr__(self) -> str:
        info = self.info
        return f"<Run {self.id} {info.state} on {len(info.ranks)} of {info.size} ranks>"

    def _see_ends(self) -> None:
        with contextlib.suppress(OSError), self._paths.events.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if line.startswith(b'{"kind":"status"'):
                    event: Any = json.loads(line)
                    if event["state"] in ENDED:
                        self._ended.add(event["rank"])

    def _lines(self, begin: bytes) -> Iterator[bytes]:
        with contextlib.suppress(OSError), self._paths.events.open("rb") as file:
            for line in file:
                if line.startswith(begin) and line.endswith(b"\n"):
                    yield line
