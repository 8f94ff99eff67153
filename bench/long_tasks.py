"""The page's longest tasks with long runs, and the cost of a frame of 64 ranks' metrics."""

from __future__ import annotations

from browser import browse, needed
from sides import workplace
from table import NotMeasured, Row

TASK_S = 0.050  # users notice longer ones
FRAME_S = 1 / 60
# What bench/browser/longtask.bench.ts and panned.bench.ts report, by name.
LINES = (
    "lines load", "lines are scrolled", "lines are filtered", "lines are collapsed",
    "numbers in lines are compared", "the view of lines gets narrow",
)  # fmt: skip
SPANS = (
    "spans load", "the timeline opens", "categories of the timeline open",
    "the timeline is zoomed", "spans are found", "a part of the timeline is selected",
    "from the timeline to the log, and to the profile",
)  # fmt: skip
CURVES = ("their mean", "all of them")


def measure(quick: bool) -> list[Row]:
    """Write records while a page shows them, several times, and measure in the page."""
    needed()
    found: dict[str, list[float]] = {}
    for _ in range(1 if quick else 5):
        with workplace() as folder:
            for (what, _), samples in browse(folder, "longtask panned", {}).items():
                found.setdefault(what, []).extend(samples)
    if missing := {*LINES, *SPANS, *CURVES} - found.keys():
        raise NotMeasured(f"the browser did not report {min(missing)!r}")
    return [
        *(
            Row(f"{run}, longest task while {what}", "ms", found[what], at_most=TASK_S)
            for run, all_of_it in (("400,000 lines", LINES), ("a million spans", SPANS))
            for what in all_of_it
        ),
        *(
            Row(f"metrics of 64 ranks, a panned frame: {what}", "ms", found[what], at_most=FRAME_S)
            for what in CURVES
        ),
    ]
