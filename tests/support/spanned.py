"""The spans of a run's record, for tests, with their names resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rankroom.run.run import Run


@dataclass
class Span:
    """One span: times in microseconds since the run's start; `about` is its name's definition."""

    cat: str
    start: int
    end: int
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.about["name"])


def spans(run: Run, rank: int, cat: str) -> list[Span]:
    """The spans of one category on a rank, in order of their start."""
    names: list[dict[str, Any]] = []
    found = []
    for event in run._store.events(run.id):
        if event["kind"] != "spans" or event["rank"] != rank:
            continue
        if "define" in event:
            assert event["from"] == len(names)
            names += event["define"]
        at = 0
        for number, apart, dur in zip(event["name"], event["start"], event["dur"], strict=True):
            at += apart
            found.append(Span(event["cat"], at, at + dur, names[number]))
    return sorted((each for each in found if each.cat == cat), key=lambda each: each.start)


def names(run: Run, rank: int, cat: str) -> list[str]:
    """Their names, in order of their start."""
    return [each.name for each in spans(run, rank, cat)]
