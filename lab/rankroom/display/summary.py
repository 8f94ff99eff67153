"""The profile and the picture in a run's output, if there is something to see and it is quick.

For large timelines, it only says where to look, so that a cell does not wait for its picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankroom.display.digest import MAX_SEARCHED_BYTES
from rankroom.record.model import RunInfo

if TYPE_CHECKING:  # importing it loads NumPy, which most cells do not need
    from rankroom.analysis.profile import Shares

# Most bytes of spans that are read: some 200,000 spans, in half a second.
MAX_SPAN_BYTES = 2 << 20
# A run without collectives gets a picture if it lasts at least this many microseconds.
LONG_RUN_US = 1_000_000
# Up to this many ranks, each has a row.
MOST_ROWS = 8
# The events that a profile needs, except samples.
_MATTERS = b'{"kind":"spans"', b'{"kind":"status"', b'{"kind":"mark"'
_COLLECTIVE = b'"cat":"collective"'


class Summary(NamedTuple):
    """What a run's output shows of its timeline."""

    sentence: str = ""
    table: str = ""
    shares: Shares | None = None
    note: str = ""

    def picture(self, room: int) -> str:
        """Return the SVG, in at most `room` bytes."""
        from rankroom.display.picture import in_words, picture

        return picture(self.shares, in_words(self.shares), room) if self.shares else ""


def summary(run: RunInfo, events: Path | None) -> Summary:
    """Return the summary of a run, from its events if there are any."""
    lines = [] if events is None else _lines(events)
    if lines is None or sum(map(len, lines)) > MAX_SPAN_BYTES:
        return Summary(note=LARGE.format(id=run.id))
    brief = run.end is not None and run.end - run.start < LONG_RUN_US
    if brief and not any(_COLLECTIVE in line for line in lines):
        return Summary()  # most cells
    from rankroom.analysis.profile import Profile, Shares
    from rankroom.analysis.profile.tables import of_ranks
    from rankroom.analysis.timeline import Timeline

    shares = Shares(Timeline.of(run, lines))
    if not shares.collectives.shared.any() and (brief or not _is_busy(shares)):
        return Summary()
    profile = Profile.from_shares(shares)
    part = profile.phase("loop") or profile
    of = profile.loop.title if profile.loop else ""
    table = of_ranks(part.wall, part.ranks, MOST_ROWS, of).text()
    return Summary(profile.diagnosis, table, shares)


def _lines(events: Path) -> list[bytes] | None:
    """Return the lines that a profile needs, up to a limit; None if the file is too large."""
    try:
        if events.stat().st_size > MAX_SEARCHED_BYTES:
            return None
        with events.open("rb") as file:
            told = (line for line in file if line.startswith(_MATTERS))
            return list(_up_to(MAX_SPAN_BYTES, told))
    except OSError:
        return []


def _up_to(most: int, lines: Iterable[bytes]) -> Iterable[bytes]:
    for line in lines:
        yield line
        most -= len(line)
        if most < 0:
            return


def _is_busy(shares: Shares) -> bool:
    """True if there are other spans than those of the cell."""
    return any(lanes.keys() - {"cell"} for lanes in shares.timeline.lanes.values())


LARGE = (
    "the record is too large to summarize here: open the run in JupyterLab, or run "
    "`rankroom runs profile {id}`"
)
