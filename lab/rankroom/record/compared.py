"""Find the runs to compare a run with: by id or part of it, by -o name, or as `last`."""

from __future__ import annotations

from collections.abc import Iterable

from rankroom.errors import RecordError
from rankroom.record.model import MAX_COMPARED_RUNS, RunInfo
from rankroom.record.store import Store

MAX_SEARCHED_RECORDS = 200  # the number of newest records that are searched for a name


def compared(store: Store, texts: Iterable[str], run_id: str = "") -> tuple[list[str], list[str]]:
    """Return the ids of the runs that `texts` name, and a note for each name that cannot be
    compared with the run `run_id`. A text may name several runs, separated by commas."""
    found: list[str] = []
    notes: list[str] = []
    for text in (part.strip() for each in texts for part in each.split(",") if part.strip()):
        try:
            other = _find(store, text, run_id)
        except RecordError as error:
            notes.append(f"not compared: {error}")
            continue
        if other == run_id:
            notes.append(SAME_RUN.format(text=text))
        elif other not in found:
            found.append(other)
    for other in found[MAX_COMPARED_RUNS:]:
        notes.append(TOO_MANY.format(id=other, most=MAX_COMPARED_RUNS))
    return found[:MAX_COMPARED_RUNS], notes


def with_metrics(store: Store, limit: int = MAX_SEARCHED_RECORDS) -> list[RunInfo]:
    """Return those of the newest `limit` runs that have metrics, or are running and may yet."""
    return [run for run in store.newest(limit) if run.state == "running" or has_metrics(store, run)]


def _find(store: Store, text: str, run_id: str) -> str:
    runs = store.newest(MAX_SEARCHED_RECORDS) if text and text not in store.ids() else []
    others = (run for run in runs if run.id != run_id)
    if text == "last":
        # Skip runs without metrics, such as a short cell that was run after the one meant.
        found = (run.id for run in others if has_metrics(store, run))
    else:
        # A cell that runs again keeps its name.
        found = (run.id for run in others if run.name == text)
    named = (run.id for run in runs if run.name == text)  # the run itself
    return next(found, None) or next(named, None) or store.find(text)


def has_metrics(store: Store, run: RunInfo) -> bool:
    """Whether a run that has ended, and is not lost, has metrics."""
    # Earlier versions did not store this in run.json.
    return run.has_metrics or store.paths(run.id).metrics.exists()


SAME_RUN = "not compared: {text!r} is this run"
TOO_MANY = "not compared with {id}: a run can be compared with at most {most} others"
