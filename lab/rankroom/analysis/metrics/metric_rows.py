"""The metrics of a run as rows, for computing with them: each point as it was reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from rankroom.analysis.timeline import TEN_YEARS_US, whole
from rankroom.errors import UsageError
from rankroom.record.model import Json, RunInfo, parse_event

COLUMNS = ("name", "rank", "step", "t", "value")
_METRICS = b'{"kind":"metrics"'


class MetricRows(list[Json]):
    """Rows of `name`, `rank`, `step`, `t` (seconds since the run's start) and `value`."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        try:
            import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise UsageError(NO_PANDAS) from None
        return pd.DataFrame(list(self), columns=list(COLUMNS))


def rows_of(run: RunInfo, lines: Iterable[bytes]) -> MetricRows:
    """Return the rows of a record's lines, in the order in which they were reported."""
    offsets = {rank.rank: rank.clock.offset if rank.clock else 0 for rank in run.ranks}
    names: dict[int, dict[int, str]] = {rank: {} for rank in offsets}
    rows = MetricRows()
    for line in lines:
        if not line.startswith(_METRICS) or (event := parse_event(line)) is None:
            continue
        if (rank := event["rank"]) in names:
            rows += _rows(event, rank, names[rank], offsets[rank])
    return rows


def _rows(event: Json, rank: int, names: dict[int, str], offset: int) -> Iterator[Json]:
    defined, first = event.get("define"), event.get("from", 0)
    if isinstance(defined, list) and isinstance(first, int):
        names.update(enumerate(map(str, defined), first))
    if not all(map(whole, event["at"])):
        return
    columns = event["name"], event["step"], accumulate(event["at"]), event["value"]
    for number, step, t, value in zip(*columns, strict=False):
        if type(number) is int and number in names and _is_sound(step, t):
            with contextlib.suppress(TypeError, ValueError):
                value = float(value) if isinstance(value, str) else value + 0
                row = names[number], rank, step, (t - offset) / 1e6, value
                yield dict(zip(COLUMNS, row, strict=True))


def _is_sound(step: Any, t: float) -> bool:
    return isinstance(step, (int, float)) and abs(t) <= TEN_YEARS_US


NO_PANDAS = (
    "pandas is not installed here: `pip install pandas`, or use the plain rows of run.metrics()"
)
