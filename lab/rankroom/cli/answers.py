"""Answer the ranks' prompts in a terminal: debugger commands and input()."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time
from collections.abc import Callable, Collection, Mapping

import click

from rankroom.display.text import one_line
from rankroom.display.words import prompt_words
from rankroom.errors import RankroomError, UsageError
from rankroom.record.model import Prompt, RunInfo
from rankroom.text.rank_ranges import name_ranks, parse_ranks

# Without a prompt from the chosen ranks, before other ranks' prompts are shown.
OTHER_RANKS_DELAY_S = 2.0
AnswerCallback = Callable[[str, Mapping[int, int]], object]
CompleteCallback = Callable[[str, int, int], tuple[int, list[str]]]


def can_ask() -> bool:
    """Return whether the user can be asked: standard input and output are a terminal."""
    # A stream that was closed before Python started is None.
    return all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout))


class Answers:
    """Read the user's answers to the prompts of the chosen ranks (default: all) and pass them on.

    `answer(text, prompts)` sends a line to prompts, a mapping of rank to prompt number.
    `complete(text, rank, number)` returns the position where the completed word begins, and the
    matches.
    """

    def __init__(
        self,
        answer: AnswerCallback,
        chosen: Collection[int] | None = None,
        complete: CompleteCallback | None = None,
    ) -> None:
        self._answer, self._complete = answer, complete
        self._all = self._chosen = chosen
        self._waited = float("inf")  # since when only ranks that were not chosen have been waiting
        self._given: dict[int, int] = {}  # by rank, the number of the prompt answered last
        self._said = ""

    def ask(self, run: RunInfo) -> bool:
        """Ask the user if a prompt is pending, and return whether the user was asked. Raises
        EOFError on Ctrl-D."""
        waiting = [p for p in run.prompts if self._given.get(p.rank) != p.number]
        waiting = [p for p in waiting if self._all is None or p.rank in self._all]
        asked = [p for p in waiting if self._chosen is None or p.rank in self._chosen]
        now = time.monotonic()
        if waiting and not asked and now > self._waited + OTHER_RANKS_DELAY_S:
            asked, self._chosen = waiting, self._all
        if not asked:
            self._waited = min(self._waited, now) if waiting else float("inf")
            return False
        self._waited = float("inf")
        first = asked[0]
        alike = [p for p in asked if (p.kind, p.text) == (first.kind, first.text)]
        self._say(run)
        prompt = f"{name_ranks([p.rank for p in alike])} {one_line(first.text, 80)} "
        text = _read(prompt, first, self._complete)
        if first.kind == "debugger" and text.startswith("@"):
            self._choose(text[1:].strip(), run)
            return True
        self._given.update({p.rank: p.number for p in alike})
        try:
            self._answer(text, {p.rank: p.number for p in alike})
        except UsageError as error:  # another client has answered it meanwhile
            click.echo(str(error), err=True)
        return True

    def _say(self, run: RunInfo) -> None:
        if (words := prompt_words(run)) != self._said:
            click.echo(f"! {words}", err=True)
            self._said = words

    def _choose(self, text: str, run: RunInfo) -> None:
        """Choose other ranks: rank 2 for `@2`, all of them for `@`."""
        try:
            self._chosen = parse_ranks(text, run.size) if text else self._all
        except UsageError as error:
            click.echo(str(error), err=True)


def _read(prompt: str, asked: Prompt, complete: CompleteCallback | None) -> str:
    """Read a line from the terminal, with history and Tab completion. Raises EOFError."""
    if asked.kind == "password":
        return getpass.getpass(prompt)
    try:
        import readline
    except ImportError:
        return input(prompt)
    found: list[str] = []

    def possibility(_word: str, state: int) -> str | None:
        if state == 0 and complete is not None:
            found.clear()
            line = readline.get_line_buffer()[: readline.get_endidx()]
            with contextlib.suppress(RankroomError):  # for instance, the rank is gone
                begin, matches = complete(line, asked.rank, asked.number)
                skip = readline.get_begidx() - begin
                found.extend(each[skip:] for each in matches)
        return found[state] if state < len(found) else None

    is_command = complete is not None and asked.kind == "debugger"
    is_libedit = "libedit" in (readline.__doc__ or "")  # as on macOS
    tab, key = ("complete", "rl_complete") if is_command else ("tab-insert", "ed-insert")
    readline.parse_and_bind(f"bind ^I {key}" if is_libedit else f"tab: {tab}")
    readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")  # words have dots
    readline.set_completer(possibility if is_command else None)
    try:
        return input(prompt)
    finally:
        readline.set_completer(None)
