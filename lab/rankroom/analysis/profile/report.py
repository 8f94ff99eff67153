"""The profile of a run as plain rows, and as tables to look at."""

from __future__ import annotations

import dataclasses
import functools
import html
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankroom.analysis.collectives import Collectives
from rankroom.analysis.profile import tables
from rankroom.analysis.profile.diagnosis import diagnosis, named_of
from rankroom.analysis.profile.intervals import length
from rankroom.analysis.profile.kinds import kinds, stragglers
from rankroom.analysis.profile.rows import Kind, RankTimes, Straggler
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.profile.user_spans import own_spans
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import Json

ROWS: dict[str, Any] = {"ranks": RankTimes, "kinds": Kind, "stragglers": Straggler}


@dataclass(repr=False)
class Profile:
    """The profile of a run: `ranks`, `kinds` and `stragglers` are rows, `diagnosis` a sentence.

    `wall` is how long the cell ran on any rank, in microseconds as all times; `named` are the ranks
    that the diagnosis says held the others up. `dropped` counts by
    reason the spans that were unsound and left out.
    """

    wall: int
    ranks: list[RankTimes]
    kinds: list[Kind]
    stragglers: list[Straggler]
    diagnosis: str
    named: list[int] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, timeline: Timeline, collectives: Collectives | None = None) -> Profile:
        """The profile of a run's timeline, matched already or not."""
        return cls.from_shares(Shares(timeline, collectives))

    @classmethod
    def from_shares(cls, shares: Shares) -> Profile:
        """The profile of a timeline whose moments are known."""
        names = [each.name for each in dataclasses.fields(RankTimes)][1:]
        ranks = [
            RankTimes(rank, **{name: length(getattr(times, name)) for name in names})
            for rank, times in shares.ranks.items()
        ]
        late = stragglers(shares)
        found = shares.collectives
        ops = {found.keys[key].op for key in np.unique(found.key[found.shared])}
        own = functools.partial(own_spans, shares)
        shared = int(found.shared.sum())
        words = diagnosis(shares.wall, ranks, late, shared, ops, own, found.has_given_up)
        named = [each.rank for each in named_of(shares.wall, len(ranks), late)] if words else []
        dropped = dict(sorted(shares.timeline.dropped.items()))
        return cls(shares.wall, ranks, kinds(shares), late, words, sorted(named), dropped)

    def rows(self, what: str = "ranks") -> list[Json]:
        """The rows of `ranks`, `kinds` or `stragglers` as dictionaries."""
        if what not in ROWS:
            raise UsageError(NO_ROWS.format(what=what, known=", ".join(ROWS)))
        return [dataclasses.asdict(row) for row in getattr(self, what)]

    def to_pandas(self, what: str = "ranks") -> Any:
        """The rows of `ranks`, `kinds` or `stragglers` as a pandas DataFrame.

        Raises UsageError where pandas is not installed.
        """
        rows = self.rows(what)
        try:
            import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise UsageError(NO_PANDAS.format(what=what)) from None
        return pd.DataFrame(rows, columns=[each.name for each in dataclasses.fields(ROWS[what])])

    def to_json(self) -> Json:
        """As in profile.json."""
        rows = {what: self.rows(what) for what in ROWS}
        rest = {"named": self.named, "diagnosis": self.diagnosis, "dropped": self.dropped}
        return {"wall": self.wall, **rows, **rest}

    @classmethod
    def from_json(cls, data: Json) -> Profile:
        """What `to_json` made. Raises KeyError, TypeError or ValueError if that did not make it."""
        rows = {what: [kind(**row) for row in data[what]] for what, kind in ROWS.items()}
        return cls(
            data["wall"], rows["ranks"], rows["kinds"], rows["stragglers"], data["diagnosis"],
            data["named"], data["dropped"],
        )  # fmt: skip

    def tables(self) -> list[tables.Table]:
        """Where each rank's time went, the kinds of collectives, and who came last."""
        made = [tables.of_ranks(self.wall, self.ranks)]
        if self.kinds:
            made.append(tables.of_kinds(self.wall, self.kinds))
        if self.stragglers:
            made.append(tables.of_stragglers(self.wall, self.stragglers))
        return made

    def remarks(self) -> list[str]:
        """The diagnosis, and what was left out."""
        return [text for text in (self.diagnosis, tables.dropped(self.dropped)) if text]

    def __str__(self) -> str:
        return "\n\n".join([*self.remarks(), *(table.text() for table in self.tables())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        remarks = [f"<div>{html.escape(text)}</div>" for text in self.remarks()]
        return "".join([*remarks, *(table.html() for table in self.tables())])


NO_ROWS = "a profile has no {what!r}: it has {known}"
NO_PANDAS = (
    "pandas is not installed here: `pip install pandas`, or use the plain rows of "
    "run.profile().rows({what!r})"
)
