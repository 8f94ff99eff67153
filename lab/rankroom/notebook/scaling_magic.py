"""`%%scaling`: the same cell on 1, 2, 4 ranks of one cluster, several times on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rankroom.analysis.scaling import Measured, Scaling
from rankroom.analysis.timeline import Timeline
from rankroom.cluster.base import AnyCluster
from rankroom.errors import RankroomError
from rankroom.notebook.stop_button import deferred
from rankroom.run.run import Run

# Waits until a run has ended or was interrupted; the flag: the stop button was pressed already. The
# answer has `was_pressed`.
Follow = Callable[[Run, bool], Any]


@dataclass
class Plan:
    """What to run: `repeat` runs on each number of ranks in `counts`, after `warm` runs that do not
    count."""

    counts: list[int]
    repeat: int = 3
    warm: int = 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the number of ranks and the run's number; 0 or less: the run does not count."""
        for ranks in self.counts:
            for number in range(1 - self.warm, self.repeat + 1):
                yield ranks, number

    def words(self, ranks: int, number: int) -> str:
        """Return which run this is, as text."""
        which = f"{number} of {self.repeat}" if number > 0 else "to warm up"
        return f"{ranks} rank{'s' if ranks > 1 else ''}, {which}"


@dataclass
class Outcome:
    """The outcome of a plan: the times so far, and what ended it early, if anything did."""

    scaling: Scaling
    broken: Run | None = None
    error: RankroomError | None = None  # why the next run could not be started or followed
    interrupted: bool = False  # between two runs
    notes: list[str] = field(default_factory=list)


def scale(
    cluster: AnyCluster,
    source: str,
    plan: Plan,
    weak: bool,
    follow: Follow,
    show: Callable[[Scaling, str], None],
    count: int | None = None,
) -> Outcome:
    """Run `source` as planned, until all runs are done or one does not succeed.

    `show(scaling, words)` is called before each run. When this returns, all ranks are one world
    again, or the notes say why not; while the last run has not ended, the ranks are left as they
    are.
    """
    outcome = Outcome(Scaling(weak))
    smaller = False
    try:
        for ranks, number in plan:
            words = plan.words(ranks, number)
            show(outcome.scaling, words)
            with deferred() as pressed:
                run = cluster.run(
                    source, range(ranks), f"scaling: {words}", count, own=True,
                    is_cancelled=lambda: bool(pressed),
                )  # fmt: skip
                smaller = ranks < cluster.size
            if follow(run, bool(pressed)).was_pressed and run.state == "done":
                outcome.interrupted = True  # the cell has handled it, or had ended just before
                break
            if run.state != "done":
                outcome.broken = run
                break
            if number > 0:
                timeline = Timeline.read(run.info, cluster.store.paths(run.id).events)
                outcome.scaling.add(ranks, Measured.of(timeline, run.id))
    except KeyboardInterrupt:
        outcome.interrupted = True
    except RankroomError as error:  # what was measured until then is kept
        outcome.error = error
    finally:
        if smaller and not (outcome.broken is not None and outcome.broken.running):
            with deferred():
                outcome.notes += _rejoin(cluster)
    return outcome


def _rejoin(cluster: AnyCluster) -> list[str]:
    """Make all ranks one world again; return notes that say why if that fails."""
    try:
        if cluster.rejoin():
            return []
        why = "a rank failed while it set up"
    except RankroomError as error:
        why = str(error)
    return [f"the ranks could not be reconnected ({why}): the next cell on all ranks tries again"]
