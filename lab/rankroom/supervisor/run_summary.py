"""What run.json says of a run, as its events tell it: failure, notes, lines, and how it ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

from rankroom.rank.waiting import looks_released
from rankroom.record.model import RANK_ENDED, Failure, Hang, Json, Prompt, RunInfo
from rankroom.text.rank_ranges import name_ranks

MOST_NOTES = 20
MOST_STUCK = 5  # notes of why it was stuck
AGAIN_S = 5.0  # until a wait that has only become longer is told again
# Of a collective whose peer has died, beside the words of one that was let go.
LOST_WORDS = ("closed by remote peer", "remote process exit", "Socket closed")
# A log line as `event_line` writes it ends with the byte offset up to which its stream is known.
_STREAM = re.compile(rb'"stream":"(\w+)"')
_TO = re.compile(rb'"to":(\d+)}$')
# As `event_line` writes spans, those that every cell has, and metrics.
SPANS, ONLY_CELL = b'{"kind":"spans"', b'"cat":"cell"'
METRICS = b'{"kind":"metrics"'
INTERRUPT = "KeyboardInterrupt"
_SECONDS = re.compile(r" for ([\d,]+) s\b")


class RunSummary:
    """Keeps `info` as the events of its ranks have it; `info` itself may be another later."""

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        ranks = [rank.rank for rank in info.ranks]
        self.next_seq = dict.fromkeys(ranks, 0)
        # Up to which byte each stream of a rank is known.
        self.spooled: dict[int, dict[str, int]] = {rank: {} for rank in ranks}
        self.raised: dict[int, int] = {}  # when each rank's error left its cell
        self.lacks_output = False  # the ranks' own copies have it, or some of it
        self._unspooled: dict[str, list[int]] = {}  # ranks by why
        self.has_profile = False  # more was seen than that the cell ran
        self.has_metrics = False
        self._told_hang = 0.0
        self._stuck: dict[str, Hang] = {}  # the longest of each kind that was noted
        # The ranks that had raised when it was interrupted first, if it was.
        self._failed_before: set[int] | None = None

    def take(self, rank: int, lines: bytes) -> Iterator[Json]:
        """Take in a rank's events; those that more may follow from, one by one."""
        for line in lines.split(b"\n"):
            if not line:
                continue
            self.next_seq[rank] += 1
            if line.startswith(b'{"kind":"log"'):
                # Not parsed, as it may be a flood; an escaped backslash before an n is no line end.
                self.info.lines += line.replace(rb"\\", b"").count(rb"\n")
                if (stream := _STREAM.search(line[:160])) and (to := _TO.search(line[-40:])):
                    self.spooled[rank][stream[1].decode()] = int(to[1])
            elif line.startswith(SPANS):  # they are for readers of the timeline
                self.has_profile |= ONLY_CELL not in line
            elif line.startswith(METRICS):
                self.has_metrics = True
            else:
                event = json.loads(line)
                self._take_in(rank, event)
                yield event

    def _take_in(self, rank: int, event: Json) -> None:
        match event:
            case {"kind": "mark", "name": "raised", "t": t}:
                self.raised.setdefault(rank, self._common(rank, t))
            case {"kind": "mark", "name": "unspooled", "args": {"why": why}}:
                self._note_unspooled(rank, why)
            case {"kind": "mark", "name": "note", "args": {"text": text}}:
                self.note(text)
            case {"kind": "mark", "name": "asks", "t": t, "args": asked}:
                kind, text, place = asked["kind"], asked["text"], asked["place"]
                self._ask(rank, Prompt(rank, asked["number"], kind, text, t, place))
            case {"kind": "mark", "name": "answered"}:
                self._ask(rank, None)
            case {"kind": "error", "t": t, "ename": name, "evalue": value}:
                if self._is_cause(rank, self._common(rank, t)):
                    self.info.failure = Failure(rank, name, value, event.get("cell_line"))
            case {"kind": "status", "state": state}:
                self.spooled[rank].update(event.get("spool", {}))
                if state in RANK_ENDED:
                    self._ask(rank, None)

    def _ask(self, rank: int, prompt: Prompt | None) -> None:
        """The rank asks this, or nothing any more."""
        others = [each for each in self.info.prompts if each.rank != rank]
        asked = others if prompt is None else [*others, prompt]
        self.info.prompts = sorted(asked, key=lambda each: each.rank)

    def _common(self, rank: int, t: int) -> int:
        """A moment of a rank's clock on that of the run, as far as it is known how they differ."""
        clock = next((each.clock for each in self.info.ranks if each.rank == rank), None)
        return t - clock.offset if clock else t

    def _is_cause(self, rank: int, t: int) -> bool:
        """True if this rank raised before all that are known: the others followed from it."""
        known = self.info.failure
        return known is None or self.raised.get(rank, t) < self.raised.get(known.rank, 0)

    def blame(self, rank: int, how: str) -> None:
        """The process of this rank is gone."""
        known = self.info.failure
        # An interrupt is no failure; that a rank did not hear it, or died of it, is one.
        if known is None or known.ename == INTERRUPT or _follows_from_loss(known):
            self.info.failure = Failure(rank, "RankLost", f"rank {rank} {how}")

    def note(self, text: str) -> None:
        """Add a note, once, unless there are very many."""
        if len(self.info.notes) < MOST_NOTES:
            self.remark(text)

    def note_lack(self, text: str) -> None:
        """Output is missing from the record: what else there is to be said does not push it out."""
        self.lacks_output = True
        self.remark(text)

    def remark(self, text: str) -> None:
        """Add a note, once, however many there are."""
        if text not in self.info.notes:
            self.info.notes.append(text)

    def _note_unspooled(self, rank: int, why: str) -> None:
        """One note for all ranks whose disk is full, or gone, for the same reason."""
        ranks = self._unspooled.setdefault(why, [])
        before = UNSPOOLED.format(ranks=name_ranks(ranks), why=why) if ranks else ""
        ranks[:] = sorted({*ranks, rank})
        text = UNSPOOLED.format(ranks=name_ranks(ranks), why=why)
        if before in self.info.notes:
            self.info.notes[self.info.notes.index(before)] = text
        else:
            self.note(text)

    def hang(self, hang: Hang | None) -> bool:
        """It is stuck for this reason, or not any more; whether that is to be told at once."""
        before, self.info.hang = self.info.hang, hang
        if before is not None and hang is None and not before.is_held:
            self._note_stuck(before)
        is_known = hang and before and _timeless(hang) == _timeless(before)
        now = time.monotonic()
        if is_known and now < self._told_hang + AGAIN_S:
            return False
        self._told_hang = now
        return True

    def _note_stuck(self, hang: Hang) -> None:
        """Note why it was stuck; of waits that differ by nothing but how long, the longest."""
        kind = _timeless(hang)
        known = self._stuck.get(kind)
        if known is None:
            if len(self._stuck) < MOST_STUCK:
                self._stuck[kind] = hang
                self.note(STUCK.format(why=hang.text))
        elif _seconds(hang) > _seconds(known):
            self._stuck[kind] = hang
            before, now = STUCK.format(why=known.text), STUCK.format(why=hang.text)
            self.info.notes[:] = [now if each == before else each for each in self.info.notes]

    def interrupt(self) -> None:
        """It is interrupted, which is not why a rank has failed before."""
        if self._failed_before is None:
            self._failed_before = {*self.raised}

    def end(self, was_interrupted: bool) -> None:
        """All ranks have ended, and with them the run."""
        self.hang(None)
        self.info.prompts = []
        self.info.has_metrics = self.has_metrics
        states = {rank.state for rank in self.info.ranks}
        failed = {rank.rank for rank in self.info.ranks if rank.state == "error"}
        if was_interrupted:
            failed &= self._failed_before or set()
        if states == {"ok"}:
            self.info.state = "done"
        elif not failed and "lost" not in states:
            self.info.state = "interrupted"
        else:
            self.info.state = "failed"
        if self.info.state != "failed":
            self.info.failure = None
        self.info.end = time.time_ns() // 1000


def _follows_from_loss(failure: Failure) -> bool:
    """Whether a rank failed with what its collective says when another rank is gone."""
    return looks_released(failure.ename, failure.evalue) or any(
        words in failure.evalue for words in LOST_WORDS
    )


def _timeless(hang: Hang) -> str:
    return _SECONDS.sub("", hang.text)


def _seconds(hang: Hang) -> int:
    found = _SECONDS.search(hang.text)
    return int(found[1].replace(",", "")) if found else 0


STUCK = "it was stuck: {why}"
UNSPOOLED = "{ranks}: {why}: for a while, what it wrote was not kept on its own disk"
