"""Why a run is stuck: asks its ranks where they are, and puts the replies into words."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rankroom.record.model import Hang, Place
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.text.rank_ranges import name_ranks

POLL_INTERVAL_S = 0.5
SILENCE_TIMEOUT_S = 0.5  # without another reply, before the remaining ranks count as silent
REPLIES_TIMEOUT_S = 3.0  # timeout for all replies
# More ranks than this are given as a count, unless they form one or two ranges.
MAX_RANKS_BY_NUMBER = 16
MAX_PLACES = 4  # in a sentence
STAND = ("waits", "still")


class StallWatch:
    """Polls the ranks of a run while one of them is stuck, or may be cut off.

    `running` always holds those whose cell has not ended. `report(hang)` is called, in the server's
    thread, once a rank has been stuck for `patience` seconds or its node is silent, again with each
    poll, and with None when that is over.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        running: Collection[int],
        connections: RankConnections,
        start: int,
        patience: float,
        report: Callable[[Hang | None], None],
    ) -> None:
        self._ranks = list(ranks)
        self._running = running
        self._connections = connections
        self._start = start
        self._patience = patience
        self._report = report
        self._on = False
        self._over = False
        self._said = False
        self._asked: dict[int, Future[Any]] = {}  # requests of the last poll; some may be pending

    def begin(self) -> None:
        """Start polling, as a rank reports that it is stuck or its node is silent."""
        if not self._on and not self._over:
            self._on = True
            self._connections.later(0, self._poll)

    def end(self) -> None:
        """Stop polling, as the run is over."""
        self._over = True

    def _poll(self) -> None:
        if self._over:
            return
        connected = set(self._connections.ranks)
        present = [rank for rank in self._ranks if rank in connected]
        # A rank that has not replied is not asked again: its requests would pile up.
        asked = {rank: each for rank, each in self._asked.items() if not each.done()}
        silent = self._connections.silent
        new = [rank for rank in present if rank not in asked and rank not in silent]
        try:
            asked |= zip(new, self._connections.request(new, do="status"), strict=True)
        except Exception:  # the cluster is going down; the run will say so
            asked = {}
        self._asked = asked
        now = time.monotonic()
        awaited = {rank: each for rank, each in asked.items() if rank not in silent}
        self._report_when_answered(awaited, 0, now + SILENCE_TIMEOUT_S, now + REPLIES_TIMEOUT_S)

    def _report_when_answered(
        self, asked: dict[int, Future[Any]], before: int, until: float, at_most: float
    ) -> None:
        """Report once all ranks have replied, or no more do; `before` had at the last check.

        The remaining ones count as silent after `until`, which each reply extends up to `at_most`.
        """
        if self._over:
            return
        now, count = time.monotonic(), sum(each.done() for each in asked.values())
        if count > before:
            until = min(now + SILENCE_TIMEOUT_S, at_most)
        if count < len(asked) and now < until:
            self._connections.later(
                0.05, lambda: self._report_when_answered(asked, count, until, at_most)
            )
            return
        answers = {rank: self._answer(rank, future) for rank, future in asked.items()}
        stand = {
            rank: answer["seconds"]
            for rank, answer in answers.items()
            if answer.get("state") in STAND
        }
        silent = self._connections.silent
        cut_off = {rank: silent[rank] for rank in self._running if rank in silent}
        answers |= {
            rank: {"state": "cut off", "beside": str(silence)} for rank, silence in cut_off.items()
        }
        unclear = ("silent", "cut off")
        if not stand and not any(answer["state"] in unclear for answer in answers.values()):
            self._on = False
            if self._said:
                self._said = False
                self._report(None)
            return
        # Slow ranks are polled again: they report only once that they are stuck.
        longest = max(stand.values(), default=0.0)
        if longest >= self._patience or cut_off:
            longest = max([longest, *(silence.seconds for silence in cut_off.values())])
            self._said = True
            found = places(answers)
            since = time.time_ns() // 1000 - self._start - int(longest * 1e6)
            # A node may have been silent before the run began.
            self._report(Hang(max(0, since), explain(found, stand), found))
        elif self._said:
            self._said = False
            self._report(None)
        self._connections.later(POLL_INTERVAL_S, self._poll)

    def _answer(self, rank: int, future: Future[Any]) -> dict[str, Any]:
        if not future.done() or future.exception():
            return {"state": "silent"}
        stands: dict[str, Any] = future.result().get("stands") or {"state": "silent"}
        # It runs no cell. Had it ended this one, it would have reported that before this reply.
        return NOT_BEGUN if stands["state"] == "ended" and rank in self._running else stands


def places(answers: Mapping[int, Mapping[str, Any]]) -> list[Place]:
    """Group ranks by where they are, according to their replies, in the order of `_ORDER`."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for rank, answer in sorted(answers.items()):
        key = (
            answer["state"],
            *(answer.get(name) for name in ("what", "cell_line", "code", "beside")),
        )
        groups.setdefault(key, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: _ORDER.index(item[0][0]))
    return [
        Place(
            ranks,
            {"other": "busy", "cut off": "silent"}.get(state, state),
            _words(len(ranks) > 1, state, what, line, beside),
            what,
            code,
        )
        for (state, what, line, code, beside), ranks in ordered
    ]


def explain(places: Sequence[Place], seconds: Mapping[int, float]) -> str:
    """Return one sentence: which ranks wait in what, where the others are, and how long the longest
    stall has lasted; `seconds` are those of the ranks that are stuck."""
    named = places
    if len(places) > MAX_PLACES:  # name the largest, and those that others may wait for
        most = max(places, key=lambda place: len(place.ranks))
        first = [place for place in places if place.state == "asks" or _is_cut_off(place)]
        few = sorted(places, key=lambda place: (place.state == "waits", len(place.ranks)))
        few = [*first, *(place for place in few if place not in first)]
        chosen = (most, *few[: MAX_PLACES - 2])
        named = [place for place in places if place in chosen]
    parts = [_sentence(place) for place in named]
    if stuck := [number for number, place in enumerate(named) if place.state in STAND]:
        longest = [max(seconds[rank] for rank in named[number].ranks) for number in stuck]
        parts[stuck[longest.index(max(longest))]] += f" for {max(longest):.0f} s"
    if rest := sum(len(place.ranks) for place in places if place not in named):
        parts.append(f"{rest:,} ranks are in {len(places) - len(named)} other places")
    if len({place.what for place in places}) > 1 and all(each.state == "waits" for each in places):
        parts[-1] += ": different collectives, so each waits for the other"
    return "; ".join(parts)


def main_first(text: str) -> str:
    """Reorder stacks of faulthandler: the main thread's first, those of Rankroom's own left out."""
    blocks = [block.strip("\n") for block in text.split("\n\n") if block.strip()]
    main = [block for block in blocks if "<frozen runpy>" in block]
    users = [b for b in blocks if b not in main and not any(own in b for own in _OURS)]
    return "\n\n".join([*main, *users])


_OURS = ("/zmq/devices/", "/rankroom/rank/", "/rankroom/reporting/", "/ipykernel/")
# A rank that is busy with something other than the cell keeps others waiting as well.
_ORDER = ("cut off", "asks", "waits", "still", "busy", "other", "ended", "silent")
NOT_BEGUN = {"state": "other"}
MAY_BE_CUT_OFF = "may be cut off: "


def _is_cut_off(place: Place) -> bool:
    return place.words.startswith(MAY_BE_CUT_OFF)


def _sentence(place: Place) -> str:
    who = name_ranks(place.ranks)
    if len(place.ranks) > MAX_RANKS_BY_NUMBER and who.count(",") > 1:
        who = f"{len(place.ranks):,} ranks"
    source = f": `{place.code}`" if place.code and place.state in ("still", "busy") else ""
    return f"{who} {place.words}{source}"


def _words(
    many: bool, state: str, what: str | None, line: int | None, beside: str | None = None
) -> str:
    if state == "cut off":
        return f"{MAY_BE_CUT_OFF}{beside}"
    if state == "asks":
        return f"{'are' if many else 'is'} in {what}"
    at = f"at cell line {line}" if line else "outside the cell"
    at += f" while {beside}" if beside else ""
    if state == "waits":
        where = f" (cell line {line})" if line else ""
        return f"{'wait' if many else 'waits'} in {what}{where}"
    if state == "still":
        return f"{'are' if many else 'is'} stuck {at}"
    if state == "busy":
        return f"{'are' if many else 'is'} {at}"
    if state == "other":
        return f"{'have' if many else 'has'} not begun the cell (busy with something else)"
    if state == "ended":
        return f"{'have' if many else 'has'} finished the cell"
    return f"{'do' if many else 'does'} not respond (busy in C code, or suspended)"
