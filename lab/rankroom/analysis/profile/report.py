"""The profile of a run and of its phases, as plain rows and as tables to read."""

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
from rankroom.analysis.profile.kinds import kinds, stragglers
from rankroom.analysis.profile.phases import Phase, before, split
from rankroom.analysis.profile.rank_memory import memory_rows, memory_words
from rankroom.analysis.profile.rows import (
    Kind,
    Loop,
    OtherLoop,
    RankMemory,
    RankTimes,
    Straggler,
)
from rankroom.analysis.profile.shares import Shares
from rankroom.analysis.profile.user_spans import own_spans
from rankroom.analysis.timeline import Timeline
from rankroom.errors import UsageError
from rankroom.record.model import Json

PART_ROWS: dict[str, Any] = {"ranks": RankTimes, "kinds": Kind, "stragglers": Straggler}
ROWS: dict[str, Any] = {**PART_ROWS, "memory": RankMemory}  # of the run


@dataclass(repr=False)
class Profile:
    """The profile of a run: `ranks`, `kinds` and `stragglers` are rows, `diagnosis` a sentence.

    `wall` is how long the run lasted over all ranks, in microseconds like all times. If a part of
    it repeats, `loop` describes that part, the diagnosis is about it, and `phases` have rows of
    their own. `named` are the ranks that held the others up according to the diagnosis. `memory`
    has a row for each rank that was sampled. `dropped` counts the invalid spans by reason.
    """

    wall: int
    ranks: list[RankTimes]
    kinds: list[Kind]
    stragglers: list[Straggler]
    diagnosis: str
    named: list[int] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    loop: Loop | None = None
    phases: list[Phase] = field(default_factory=list)
    memory: list[RankMemory] = field(default_factory=list)

    @classmethod
    def of(cls, timeline: Timeline, collectives: Collectives | None = None) -> Profile:
        """Return the profile of a timeline; `collectives` if they are matched already."""
        return cls.from_shares(Shares(timeline, collectives))

    @classmethod
    def from_shares(cls, shares: Shares) -> Profile:
        """Return the profile of a timeline whose shares are known."""
        late = stragglers(shares)
        words, named = _diagnosis_of(shares, late)
        dropped = dict(sorted(shares.timeline.dropped.items()))
        rows = shares.rows()
        made = cls(shares.wall, rows, kinds(shares), late, words, named, dropped)
        made.loop, parts = split(shares)
        made.phases = [Phase.of(name, part) for name, part in parts.items()]
        if made.loop and (phase := made.phase("loop")):
            words, named = _diagnosis_of(parts["loop"], phase.stragglers, made.loop.steps)
            if words:
                made.diagnosis = f"{made.loop.title}: {words}{before(made.phases)}"
                made.named = made.loop.named = named
        return made.with_memory(shares.timeline)

    def with_memory(self, timeline: Timeline) -> Profile:
        """Return the profile with the samples so far; its spans must be the timeline's."""
        loop = self.phase("loop")
        window = (loop.begin, loop.end) if loop else timeline.wall
        memory = memory_rows(timeline, window)
        return self if memory == self.memory else dataclasses.replace(self, memory=memory)

    def phase(self, name: str) -> Phase | None:
        """Return the phase `startup`, `warmup`, `loop` or `rest`; None if the run has none such."""
        return next((each for each in self.phases if each.phase == name), None)

    def rows(self, what: str = "ranks", phase: str = "") -> list[Json]:
        """Return as dictionaries the rows of `ranks`, `kinds` or `stragglers`, of the run or a
        phase, or of the run's `memory`.

        Raises UsageError if there are no such rows.
        """
        has = PART_ROWS if phase else ROWS
        if what not in has:
            raise UsageError(NO_ROWS.format(what=what, known=", ".join(has)))
        part = self.phase(phase) if phase else self
        if part is None:
            known = ", ".join(each.phase for each in self.phases) or NO_PHASES
            raise UsageError(NO_ROWS.format(what=phase, known=known))
        return [dataclasses.asdict(row) for row in getattr(part, what)]

    def to_pandas(self, what: str = "ranks", phase: str = "") -> Any:
        """Return the same rows as a pandas DataFrame.

        Raises UsageError if pandas is not installed.
        """
        rows = self.rows(what, phase)
        try:
            import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise UsageError(NO_PANDAS.format(what=what)) from None
        return pd.DataFrame(rows, columns=[each.name for each in dataclasses.fields(ROWS[what])])

    def to_json(self) -> Json:
        """Return the profile in the format of profile.json."""
        rows = {what: self.rows(what) for what in PART_ROWS}
        rest = {"named": self.named, "diagnosis": self.diagnosis, "dropped": self.dropped}
        phases: Json = {}
        if self.loop:
            phases["loop"] = dataclasses.asdict(self.loop)
            phases["phases"] = [dataclasses.asdict(phase) for phase in self.phases]
        if self.memory:
            phases["memory"] = self.rows("memory")
        return {"wall": self.wall, **rows, **rest, **phases}

    @classmethod
    def from_json(cls, data: Json) -> Profile:
        """Restore what `to_json` made. Raises KeyError, TypeError or ValueError for other data."""
        loop = None
        if found := data.get("loop"):
            loop = Loop(**{**found, "others": [OtherLoop(**each) for each in found["others"]]})
        return cls(
            data["wall"], **_read(data), diagnosis=data["diagnosis"], named=data["named"],
            dropped=data["dropped"], loop=loop,
            phases=[Phase(**{**each, **_read(each)}) for each in data.get("phases", ())],
            memory=[RankMemory(**row) for row in data.get("memory", ())],
        )  # fmt: skip

    def tables(self) -> list[tables.Table]:
        """Return tables of where each rank's time went, of the kinds of collectives, and of the
        stragglers: in the loop if there is one, followed by the phases and by the ranks' times in
        the whole run."""
        part = self.phase("loop") or self
        of = self.loop.title if self.loop else ""
        made = [tables.of_ranks(part.wall, part.ranks, of=of)]
        if part.kinds:
            made.append(tables.of_kinds(part.wall, part.kinds, of))
        if part.stragglers:
            made.append(tables.of_stragglers(part.wall, part.stragglers, of))
        if self.phases:
            made.append(tables.of_phases(self.wall, self.phases))
            made.append(tables.of_ranks(self.wall, self.ranks, of="the whole run"))
        if self.memory:
            made.append(tables.of_memory(self.memory))
        return made

    def remarks(self) -> list[str]:
        """Return diagnosis, speed of the loop, memory, and what was left out; a line each."""
        facts = tables.of_loop(self.loop) if self.loop else ""
        memory = memory_words(self.memory, self.loop)
        told = (self.diagnosis, facts, memory, tables.dropped(self.dropped))
        return [text for text in told if text]

    def __str__(self) -> str:
        return "\n\n".join([*self.remarks(), *(table.text() for table in self.tables())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        remarks = [f"<div>{html.escape(text)}</div>" for text in self.remarks()]
        return "".join([*remarks, *(table.html() for table in self.tables())])


def _diagnosis_of(shares: Shares, late: list[Straggler], steps: int = 0) -> tuple[str, list[int]]:
    """Return the sentence on a run, or on the steps of its loop, and the ranks that it names."""
    found = shares.collectives
    chosen = found.shared & shares.chosen
    ops = {found.keys[key].op for key in np.unique(found.key[chosen])}
    own = functools.partial(own_spans, shares)
    rows, shared = shares.rows(), int(chosen.sum())
    # A step in which a rank waits for ranks that never arrive does not end, so does not count.
    given_up = not steps and found.has_given_up
    words = diagnosis(shares.wall, rows, late, shared, ops, own, given_up, steps)
    named = [each.rank for each in named_of(shares.wall, len(rows), late)] if words else []
    return words, sorted(named)


def _read(data: Json) -> dict[str, Any]:
    return {what: [kind(**row) for row in data[what]] for what, kind in PART_ROWS.items()}


NO_ROWS = "this profile has no {what!r}; it has {known}"
NO_PHASES = "no phases, because no part of the run repeats"
NO_PANDAS = (
    "pandas is not installed here: `pip install pandas`, or use the plain rows of "
    "run.profile().rows({what!r})"
)
