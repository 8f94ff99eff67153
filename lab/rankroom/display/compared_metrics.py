"""The runs that a run is compared with, where the view cannot run: last values side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankroom.analysis.metrics.curves import Curve
from rankroom.analysis.metrics.metrics_of_run import GrowingMetrics, StoredMetrics, metrics_of
from rankroom.analysis.profile.tables import Table
from rankroom.display.text import one_line
from rankroom.display.words import counted, ranks_words
from rankroom.errors import RecordError
from rankroom.record.model import RunInfo
from rankroom.record.store import RecordPaths, Store
from rankroom.text.amounts import step_number

MAX_LISTED_METRICS = 5  # metrics that are listed of a run with none of those shown
NO_VALUE = "–"


class Other(NamedTuple):
    """A run that another is compared with, and its letter."""

    letter: str
    run: RunInfo
    found: GrowingMetrics | StoredMetrics

    @property
    def words(self) -> str:
        """Which run the letter stands for."""
        run = self.run
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start / 1e6))
        state = "" if run.state == "done" else f", {run.state}"
        title = one_line(run.name or run.title, 50)
        return f"{self.letter}: {title}, run {run.id}, {when}, {ranks_words(run)}{state}"


class Comparison(NamedTuple):
    """The runs that can be shown, and notes on those that need one."""

    others: list[Other]
    notes: list[str]

    @property
    def legend(self) -> str:
        """Which runs the letters stand for, and what is not shown; a line each."""
        return "\n".join([*(other.words for other in self.others), *self.notes])


def comparison(
    store: Store, run: RunInfo, names: Sequence[str], most: int | None = None
) -> Comparison:
    """Return the runs that `run`, whose metrics have these names, is compared with. Runs whose
    metrics take more than `most` bytes to read only get a note."""
    others: list[Other] = []
    notes: list[str] = []
    for place, run_id in enumerate(run.compare):
        letter = chr(ord("A") + place)
        try:
            other, paths = store.load(run_id), store.paths(run_id)
            if most is not None and _weight(paths) > most:
                notes.append(LARGE.format(letter=letter, id=run_id))
                continue
        except RecordError as error:
            why = str(error) if run_id in store.ids() else RECORD_GONE
            notes.append(f"not compared with {letter}, run {one_line(run_id, 40)}: {why}")
            continue
        found = metrics_of(paths, other)
        theirs = list(found.metrics.curves)
        if theirs:
            others.append(Other(letter, other, found))
            if not set(theirs) & set(names):
                has = ", ".join(one_line(name, 40) for name in theirs[:MAX_LISTED_METRICS])
                notes.append(OTHER_NAMES.format(letter=letter, names=has))
        else:
            yet = " yet" if other.state == "running" else ""
            notes.append(NO_METRICS.format(letter=letter, id=run_id, yet=yet))
    return Comparison(others, notes)


def compared_values(
    found: GrowingMetrics | StoredMetrics, others: Sequence[Other], most: int
) -> str:
    """Return a table of each metric's last values in this run and the others: means over ranks."""
    head = ["metric", "this run", "step"]
    for other in others:
        head += [other.letter, "step", f"this − {other.letter}"]
    ours = found.metrics.curves
    theirs = [other.found.metrics.curves for other in others]
    names = list(dict.fromkeys([*ours, *(name for curves in theirs for name in curves)]))
    rows = []
    for name in names[:most]:
        value, step = _last(ours.get(name, {}))
        row = [one_line(name, 40), *_cells(value, step)]
        for curves in theirs:
            their, at = _last(curves.get(name, {}))
            apart = math.nan if value is None or their is None else value - their
            row += [*_cells(their, at), f"{apart:+.3g}" if math.isfinite(apart) else NO_VALUE]
        rows.append(row)
    more = len(names) - len(rows)
    return Table(head, rows).text() + (f"\n… and {counted(more, 'more metric')}" if more else "")


def _last(curves: Mapping[int, Curve]) -> tuple[float | None, float]:
    """Return the mean of the ranks' last values, and the highest last step; None without any."""
    if not curves:
        return None, 0.0
    mean = sum(curve.last / len(curves) for curve in curves.values())
    return mean, max(curve.last_step for curve in curves.values())


def _cells(value: float | None, step: float) -> list[str]:
    return [NO_VALUE, NO_VALUE] if value is None else [f"{value:.5g}", step_number(step)]


def _weight(paths: RecordPaths) -> int:
    """Return the bytes to read for a run's metrics."""
    for path in (paths.metrics, paths.events):
        try:
            return path.stat().st_size
        except OSError:
            continue
    return 0


RECORD_GONE = "its record was not found"
LARGE = "{letter}, run {id}, has many metrics: open the run in JupyterLab to compare them"
NO_METRICS = "{letter}, run {id}, has no metrics{yet}"
OTHER_NAMES = "{letter} shares no metric with this run; its metrics include {names}"
