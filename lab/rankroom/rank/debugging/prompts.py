"""Prompts of a cell to the users who follow its run: input(), and the debugger's next command.

The question is a mark of the run, so that all clients receive it; the answer arrives over the
connection that also takes releases while a cell runs.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rankroom.rank import stacks
from rankroom.rank.debugging.frame_completion import FrameCompletion
from rankroom.rank.waiting import Waiting
from rankroom.rank.world import ReleasedError
from rankroom.reporting.spans import span

MAX_PROMPT_CHARS = 1000  # characters of a prompt that are reported
PROMPT_SOURCES = {"debugger": "the debugger", "input": "input()", "password": "getpass()"}


@dataclass
class Question:
    """A pending question, on which the main thread is blocked; the answer None releases it."""

    number: int
    kind: str
    place: str
    take: Callable[[str | None], None]
    is_answered: bool = False

    def answer(self, text: str | None) -> bool:
        """Answer it; False if it was answered before."""
        if self.is_answered:
            return False
        self.is_answered = True
        self.take(text)
        return True


of_this_rank: Prompts | None = None  # None if this process is not a rank
debuggers: set[Any] = set()  # all that have stopped in the current cell


class Prompts:
    """The questions of one rank, one at a time.

    `emit(kind, **fields)` reports an event at once; `cells()` returns the file names of this
    session's cells.
    """

    def __init__(self, emit: Callable[..., None], cells: Callable[[], set[str]]) -> None:
        self.current: Question | None = None
        self.debugger: Any = None  # the one that is reading a command, if any
        self._emit = emit
        self._cells = cells
        self._interactive = False  # whether a user can answer
        self._released = False
        self._number = 0
        self._told: set[str] = set()
        self._completion = FrameCompletion()
        self._pid = os.getpid()

    def begin(self, interactive: bool) -> None:
        """Prepare for a cell whose questions a user can answer if it is `interactive`."""
        self._interactive, self._released = interactive, False
        self._told.clear()

    def end(self) -> None:
        """Refuse questions after a cell: what runs now belongs to no run."""
        self._interactive = False

    def refusal(self) -> str:
        """Return why nothing can be asked here and now; empty if something can."""
        if os.getpid() != self._pid:
            return "it is in a child process of the rank"
        if threading.current_thread() is not threading.main_thread():
            return "it is not in the rank's main thread"
        return self.unattended

    @property
    def unattended(self) -> str:
        """Why this cell's questions cannot be answered; empty if they can."""
        return "" if self._interactive else "the run is not interactive, so no one can answer"

    def stopped_in(self, text: str) -> FrameType | None:
        """Return the frame in which the debugger has stopped, if `text` is its prompt."""
        debugger = self.debugger
        if debugger is None or debugger.prompt != text:
            return None
        stopped: FrameType | None = debugger.stopped_in
        return stopped

    def pass_over(self, what: str, place: str, why: str) -> None:
        """Print that `what` was skipped, once for each place of a cell."""
        said = f"{what} at {place} skipped: {why}"
        if said not in self._told:
            self._told.add(said)
            print(said, flush=True)

    def place(self, frame: FrameType | None) -> str:
        """Return where a frame is: `cell line 5`, or `train.py:12` if a file's code runs there."""
        if frame is None:
            return "an unknown place"
        if frame.f_code.co_filename in self._cells():
            return f"cell line {stacks.place(frame, self._cells()).cell_line}"
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

    def ask(self, kind: str, text: str, frame: FrameType | None) -> str:
        """Ask a question, and return the first answer. The log shows it after the prompt, unless it
        is a password.

        An interrupt ends the wait, and so does a release from another thread (ReleasedError).
        """
        sys.stdout.flush()
        answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with span(f"in {PROMPT_SOURCES[kind]}"):
            before = self.current
            try:
                self.begin_question(kind, text, self.place(frame), answers.put)
                answer = answers.get()
            finally:
                self.end_question(before)
        if answer is None:
            Waiting.broken = PROMPT_SOURCES[kind]
            raise ReleasedError(PROMPT_RELEASED.format(what=PROMPT_SOURCES[kind]))
        print(text if kind == "password" else f"{text}{answer}", flush=True)
        return answer

    def begin_question(
        self, kind: str, text: str, place: str, take: Callable[[str | None], None]
    ) -> None:
        """Report a question on which the main thread is blocked; `take` is called with the answer,
        or with None at once if the cell was released already."""
        self._number += 1
        self.current = question = Question(self._number, kind, place, take)
        if self._released:
            question.answer(None)
        about = {
            "number": question.number,
            "kind": kind,
            "text": text[:MAX_PROMPT_CHARS],
            "place": place,
        }
        self._emit("mark", name="asks", args=about)

    def end_question(self, before: Question | None = None) -> None:
        """End the current question; `before`, in which it was asked, is pending again."""
        question, self.current = self.current, before
        if question is not None and question is not before:
            self._emit("mark", name="answered", args={"number": question.number})

    def answer(self, number: int, text: str) -> bool:
        """Answer the question of this number; return False if it is not pending (any more)."""
        question = self.current
        return question is not None and question.number == number and question.answer(text)

    def complete(self, number: int, line: str) -> dict[str, Any]:
        """Return completions in a line that is to answer the debugger's question of this number."""
        question, debugger = self.current, self.debugger
        if question is None or (question.number, question.kind) != (number, "debugger"):
            return {"begin": len(line), "matches": []}
        if debugger is None:  # JupyterLab's debugger completes in its own console
            return {"begin": len(line), "matches": []}
        return self._completion.of(debugger, line)

    def release(self) -> list[str]:
        """Release a pending question, and later ones of this cell; return what was released."""
        self._released, question = True, self.current
        if question is None:
            return []
        question.answer(None)
        return [PROMPT_SOURCES[question.kind]]

    def standing(self) -> dict[str, Any] | None:
        """Return where the rank is, as in `Watchdog.standing`; None if it asks nothing."""
        question = self.current
        if question is None:
            return None
        frame = stacks.main_frame()
        about = stacks.place(frame, self._cells())
        what = f"{PROMPT_SOURCES[question.kind]} at {question.place}"
        return {"state": "asks", "what": what, "seconds": 0, "cell_line": about.cell_line,
                "code": None}  # fmt: skip


PROMPT_RELEASED = "{what} was released with its run"
