"""What run.json says of a run, derived from its events: failure, notes, lines, and how it ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

from rankroom.rank.waiting import looks_released
from rankroom.record.model import ENDED_RANK_STATES, Failure, Hang, Json, Prompt, RunInfo
from rankroom.text.rank_ranges import name_ranks

MOST_NOTES = 20
MOST_STUCK = 5  # notes on why the run was stuck
REPEATED_STALL_DELAY_S = 5.0  # before a stall that has only become longer is reported again
# In errors of collectives whose peer has died, besides those of released ones.
LOST_WORDS = ("closed by remote peer", "remote process exit", "Socket closed")
# A log line as `event_line` writes it ends with the byte offset up to which its stream is known.
_STREAM = re.compile(rb'"stream":"(\w+)"')
_TO = re.compile(rb'"to":(\d+)}$')
# Spans, the span that every cell has, and metrics, as `event_line` writes them.
SPANS, ONLY_CELL = b'{"kind":"spans"', b'"cat":"cell"'
METRICS = b'{"kind":"metrics"'
INTERRUPT = "KeyboardInterrupt"
_SECONDS = re.compile(r" for ([\d,]+) s\b")


class RunSummary:
    """Updates `info` from the events of its ranks."""

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        ranks = [rank.rank for rank in info.ranks]
        self.next_seq = dict.fromkeys(ranks, 0)
        # Up to which byte the output of each stream of a rank is known.
        self.spooled: dict[int, dict[str, int]] = {rank: {} for rank in ranks}
        self.raised: dict[int, int] = {}  # when each rank's error left its cell
        self.lacks_output = False  # the ranks' spools still have it, or part of it
        self._unspooled: dict[str, list[int]] = {}  # ranks by cause
        self.has_profile = False  # there are spans other than that of the cell itself
        self.has_metrics = False
        self._told_hang = 0.0
        self._stuck: dict[str, Hang] = {}  # by kind: the longest stall that was noted
        # The ranks that had raised when the run was first interrupted; None if it was not.
        self._failed_before: set[int] | None = None

    def take(self, rank: int, lines: bytes) -> Iterator[Json]:
        """Take in a rank's events; yield those that the recorder may have to act on."""
        for line in lines.split(b"\n"):
            if not line:
                continue
            self.next_seq[rank] += 1
            if line.startswith(b'{"kind":"log"'):
                # Not parsed, as it may be a flood; an escaped backslash before an n is no line end.
                self.info.lines += line.replace(rb"\\", b"").count(rb"\n")
                if (stream := _STREAM.search(line[:160])) and (to := _TO.search(line[-40:])):
                    self.spooled[rank][stream[1].decode()] = int(to[1])
            elif line.startswith(SPANS):  # not parsed, as they are for readers of the timeline
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
            case {"kind": "mark", "name": "answered" | "away"}:
                self._ask(rank, None)
            case {"kind": "error", "t": t, "ename": name, "evalue": value}:
                if self._is_cause(rank, self._common(rank, t)):
                    self.info.failure = Failure(rank, name, value, event.get("cell_line"))
            case {"kind": "status", "state": state}:
                self.spooled[rank].update(event.get("spool", {}))
                if state in ENDED_RANK_STATES:
                    self._ask(rank, None)

    def _ask(self, rank: int, prompt: Prompt | None) -> None:
        """Set the prompt at which a rank waits; None if it no longer does."""
        others = [each for each in self.info.prompts if each.rank != rank]
        asked = others if prompt is None else [*others, prompt]
        self.info.prompts = sorted(asked, key=lambda each: each.rank)

    def _common(self, rank: int, t: int) -> int:
        """Convert a rank's time to the run's clock, as far as the offset is known (µs)."""
        clock = next((each.clock for each in self.info.ranks if each.rank == rank), None)
        return t - clock.offset if clock else t

    def _is_cause(self, rank: int, t: int) -> bool:
        """Return whether this rank raised before the known failure, which then followed from it."""
        known = self.info.failure
        return known is None or self.raised.get(rank, t) < self.raised.get(known.rank, 0)

    def blame(self, rank: int, how: str) -> None:
        """Record the loss of a rank's process as the failure, unless there is an earlier cause."""
        known = self.info.failure
        # An interrupt is no failure; but it is one if a rank did not react to it, or died of it.
        if known is None or known.ename == INTERRUPT or _follows_from_loss(known):
            self.info.failure = Failure(rank, "RankLost", f"rank {rank} {how}")

    def note(self, text: str) -> None:
        """Add a note, once, unless there are very many."""
        if len(self.info.notes) < MOST_NOTES:
            self.remark(text)

    def note_lack(self, text: str) -> None:
        """Note that output is missing from the record, however many notes there are."""
        self.lacks_output = True
        self.remark(text)

    def remark(self, text: str) -> None:
        """Add a note, once, however many there are."""
        if text not in self.info.notes:
            self.info.notes.append(text)

    def _note_unspooled(self, rank: int, why: str) -> None:
        """Keep one note per reason for all ranks whose disk is full or gone."""
        ranks = self._unspooled.setdefault(why, [])
        before = UNSPOOLED.format(ranks=name_ranks(ranks), why=why) if ranks else ""
        ranks[:] = sorted({*ranks, rank})
        text = UNSPOOLED.format(ranks=name_ranks(ranks), why=why)
        if before in self.info.notes:
            self.info.notes[self.info.notes.index(before)] = text
        else:
            self.note(text)

    def hang(self, hang: Hang | None) -> bool:
        """Set why the run is stuck, or None; return whether that is to be reported at once."""
        before, self.info.hang = self.info.hang, hang
        if before is not None and hang is None and not before.is_held:
            self._note_stuck(before)
        is_known = hang and before and _timeless(hang) == _timeless(before)
        now = time.monotonic()
        if is_known and now < self._told_hang + REPEATED_STALL_DELAY_S:
            return False
        self._told_hang = now
        return True

    def _note_stuck(self, hang: Hang) -> None:
        """Note why the run was stuck; of stalls that differ in duration only, the longest."""
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
        """Note that the run is interrupted: ranks that raised before failed for another reason."""
        if self._failed_before is None:
            self._failed_before = {*self.raised}

    def end(self, was_interrupted: bool) -> None:
        """Set the final state of the run, as all ranks have ended."""
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
    """Return whether a rank failed with the error of a collective whose peer is gone."""
    return looks_released(failure.ename, failure.evalue) or any(
        words in failure.evalue for words in LOST_WORDS
    )


def _timeless(hang: Hang) -> str:
    return _SECONDS.sub("", hang.text)


def _seconds(hang: Hang) -> int:
    found = _SECONDS.search(hang.text)
    return int(found[1].replace(",", "")) if found else 0


STUCK = "the run was stuck: {why}"
UNSPOOLED = "{ranks}: {why}: for a while, output could not be spooled to disk there"
