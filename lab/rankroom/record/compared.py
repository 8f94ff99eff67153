"""Find the runs to compare a run with: by id or part of it, by -o name, or as `last`."""

from __future__ import annotations

from collections.abc import Iterable

from rankroom.errors import RecordError
from rankroom.record.model import MOST_COMPARED, RunInfo
from rankroom.record.store import Store

LOOKED_AT = 200  # the number of newest records that are searched for a name


def compared(store: Store, texts: Iterable[str], run_id: str = "") -> tuple[list[str], list[str]]:
    """Return the ids of the runs that `texts` name, and a note for each name that cannot be
    compared with the run `run_id`. A text may name several runs, separated by commas."""
    found: list[str] = []
    notes: list[str] = []
    for text in (part.strip() for each in texts for part in each.split(",")):
        try:
            other = _find(store, text, run_id)
        except RecordError as error:
            notes.append(f"not compared: {error}")
            continue
        if other == run_id:
            notes.append(ITSELF.format(text=text))
        elif other not in found:
            found.append(other)
    for other in found[MOST_COMPARED:]:
        notes.append(TOO_MANY.format(id=other, most=MOST_COMPARED))
    return found[:MOST_COMPARED], notes


def with_metrics(store: Store, limit: int = LOOKED_AT) -> list[RunInfo]:
    """Return those of the newest `limit` runs that have metrics, or are running and may yet."""
    return [run for run in store.newest(limit) if run.state == "running" or has_metrics(store, run)]


def _find(store: Store, text: str, run_id: str) -> str:
    runs = store.newest(LOOKED_AT) if text and text not in store.ids() else []
    if text == "last":
        # Skip runs without metrics, such as a short cell that was run after the one meant.
        found = (run.id for run in runs if run.id != run_id and has_metrics(store, run))
    else:
        found = (run.id for run in runs if run.name == text)
    return next(found, None) or store.find(text)


def has_metrics(store: Store, run: RunInfo) -> bool:
    """Whether a run that has ended, and is not lost, has metrics."""
    # Earlier versions did not store this in run.json.
    return run.has_metrics or store.paths(run.id).metrics.exists()


ITSELF = "not compared: {text!r} is this run"
TOO_MANY = "not compared with {id}: a run is compared with {most} others at most"
