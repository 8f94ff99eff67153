"""Why a run is stuck: asks its ranks where they are, and puts the answer into words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rankroom.record.model import Hang, Standing
from rankroom.supervisor.rank_connections import RankConnections
from rankroom.text.rank_ranges import format_ranks

LOOK_S = 0.5
ANSWER_S = 0.5  # for a rank to say where it stands


class StallWatch:
    """Looks at the ranks of a run while one of them is stuck.

    `say(hang)` is called, in the server's thread, with what is known once a rank has stood for
    `patience` seconds, again with each look, and with None when it is over.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        connections: RankConnections,
        start: int,
        patience: float,
        say: Callable[[Hang | None], None],
    ) -> None:
        self._ranks = list(ranks)
        self._connections = connections
        self._start = start
        self._patience = patience
        self._say = say
        self._on = False
        self._over = False
        self._said = False

    def begin(self) -> None:
        """A rank says that it is stuck: look until it does."""
        if not self._on and not self._over:
            self._on = True
            self._connections.later(0, self._look)

    def end(self) -> None:
        """The run is over."""
        self._over = True

    def _look(self) -> None:
        if self._over:
            return
        present = [rank for rank in self._ranks if rank in self._connections.ranks]
        try:
            asked = dict(zip(present, self._connections.request(present, do="status"), strict=True))
        except Exception:  # the cluster is going down; the run will say so
            asked = {}
        self._judge(asked, time.monotonic() + ANSWER_S)

    def _judge(self, asked: dict[int, Future[Any]], until: float) -> None:
        if self._over:
            return
        if time.monotonic() < until and not all(each.done() for each in asked.values()):
            self._connections.later(0.05, lambda: self._judge(asked, until))
            return
        answers = {rank: _answer(future) for rank, future in asked.items()}
        stand = {
            rank: answer["seconds"]
            for rank, answer in answers.items()
            if answer.get("state") in ("waits", "still")
        }
        if not stand and not any(answer["state"] == "silent" for answer in answers.values()):
            self._on = False
            if self._said:
                self._said = False
                self._say(None)
            return
        # Those that are slow to answer are asked again: they say only once that they stand.
        longest = max(stand.values(), default=0.0)
        if longest >= self._patience:
            self._said = True
            standings = [standing(rank, answer) for rank, answer in sorted(answers.items())]
            since = time.time_ns() // 1000 - self._start - int(longest * 1e6)
            self._say(Hang(since, explain(standings, longest), standings))
        elif self._said:
            self._said = False
            self._say(None)
        self._connections.later(LOOK_S, self._look)


def _answer(future: Future[Any]) -> dict[str, Any]:
    if not future.done() or future.exception():
        return {"state": "silent"}
    stands: dict[str, Any] = future.result().get("stands") or {"state": "silent"}
    return stands


def standing(rank: int, answer: dict[str, Any]) -> Standing:
    """What a rank answered, as the record has it."""
    return Standing(
        rank, answer["state"], answer.get("what"), answer.get("cell_line"), answer.get("code")
    )


def explain(standings: Sequence[Standing], seconds: float) -> str:
    """One sentence: who waits in what, where the others are. `seconds` is the longest wait."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for each in standings:
        key = (each.state, each.what, each.cell_line, each.code)
        groups.setdefault(key, []).append(each.rank)
    ordered = sorted(groups.items(), key=lambda item: _ORDER.index(item[0][0]))
    parts = [_words(ranks, *key) for key, ranks in ordered]
    first = ordered[0][0][0] if ordered else ""
    if first in ("waits", "still"):
        parts[0] += f" for {seconds:.0f} s"
    waits = {key[1] for key, _ in ordered if key[0] == "waits"}
    if len(waits) > 1 and all(key[0] == "waits" for key, _ in ordered):
        parts[-1] += ": different collectives, so each waits for the other"
    return "; ".join(parts)


def main_first(text: str) -> str:
    """Stacks as faulthandler writes them: the main thread's first, Rankroom's own left out."""
    blocks = [block.strip("\n") for block in text.split("\n\n") if block.strip()]
    main = [block for block in blocks if "<frozen runpy>" in block]
    users = [b for b in blocks if b not in main and not any(own in b for own in _OURS)]
    return "\n\n".join([*main, *users])


_OURS = ("/zmq/devices/", "/rankroom/rank/", "/rankroom/reporting/", "/ipykernel/")
_ORDER = ("waits", "still", "busy", "ended", "silent")


def _words(
    ranks: list[int], state: str, what: str | None, line: int | None, code: str | None
) -> str:
    who = f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"
    many = len(ranks) > 1
    at = f"at cell line {line}" if line else "outside the cell"
    source = f": `{code}`" if code else ""
    if state == "waits":
        where = f" (cell line {line})" if line else ""
        return f"{who} {'wait' if many else 'waits'} in {what}{where}"
    if state == "still":
        return f"{who} {'stand' if many else 'stands'} {at}{source}"
    if state == "busy":
        return f"{who} {'are' if many else 'is'} {at}{source}"
    if state == "ended":
        return f"{who} {'have' if many else 'has'} finished the cell"
    return f"{who} {'do' if many else 'does'} not answer (busy in C code, or stopped)"
