"""The profile of a live run with a million spans: time to update it with new events.

No peer has one. A rank reports some four times a second; here each update adds what 2 ranks report
in a second of 3 ms steps. Collectives are matched, time is divided up, and a diagnosis is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from rankroom.analysis.profile.of_run import GrowingProfile, profile_of, write_profile
from rankroom.record.store import Store
from sides import workplace
from table import NotMeasured, Row
from timeline_view import write_record

RANKS = 2


def measure(quick: bool) -> list[Row]:
    """Measure the first update, later ones, and reading profile.json of the finished run."""
    each = 50_000 if quick else 500_000
    first, later = [], []
    with workplace() as folder:
        write_record(folder / "runs" / "spans", RANKS, each)
        store = Store(folder)
        run = store.load("spans")
        events = store.paths(run.id).events
        whole = events.read_bytes()
        live = replace(run, state="running")
        for _ in range(3):
            cut = whole.rindex(b"\n", 0, int(len(whole) * 0.98)) + 1
            events.write_bytes(whole[:cut])
            growing = GrowingProfile(store.paths(run.id), live)
            first.append(_timed(growing.refresh, live))
            for piece in _pieces(whole[cut:], 10):
                with events.open("ab") as file:
                    file.write(piece)
                later.append(_timed(growing.refresh, live))
        write_profile(store, run)
        if profile_of(store, run) != growing.refresh(run):
            raise NotMeasured("what is kept is another profile")
        kept = [_timed(profile_of, store, run) for _ in range(9)]
    what = f"profile of {RANKS} ranks × {each:,} spans"
    return [
        Row(f"{what}: the first look", "ms", first),
        Row(f"{what}: a look at what is new", "ms", later, at_most=0.1),
        Row(f"{what}: read when it is over", "ms", kept, at_most=0.02),
    ]


def _pieces(data: bytes, count: int) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    each = -(-len(lines) // count)
    return [b"".join(lines[at : at + each]) for at in range(0, len(lines), each)]


def _timed(call: Callable[..., object], *args: object) -> float:
    begun = time.perf_counter()
    call(*args)
    return time.perf_counter() - begun
