"""A waiting command's terminal: a status line rewritten in place, and Ctrl-C as an event."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator

import click

INTERRUPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """Standard output and input; without a terminal, each change of status is a line of its own."""

    def __init__(self) -> None:
        self._live = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed
        self._shown = ""
        self._asking = False
        self._gone = False  # after SIGTERM or SIGHUP, the user can no longer be asked
        self.page: Callable[[str], None] = self.say

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        click.echo(text)

    def show(self, text: str) -> None:
        """Show `text` as the status, in place of the previous one."""
        if self._asking or text == self._shown:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            cut = text if len(text) <= width else f"{text[: width - 1]}…"
            sys.stdout.write(f"\r\x1b[K{cut}")
            sys.stdout.flush()
            self._shown = text
        elif (news := text.partition(" · ")[0]) != self._shown:
            click.echo(news)
            self._shown = news

    def clear(self) -> None:
        """Erase the status line."""
        if self._live and self._shown:
            sys.stdout.write("\r\x1b[K")
            self._shown = ""

    @contextlib.contextmanager
    def interrupt_event(self) -> Iterator[asyncio.Event]:
        """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; a signal that is ignored, as SIGHUP
        is under nohup, stays ignored."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def pressed(sign: signal.Signals) -> None:
            self._gone = self._gone or sign != signal.SIGINT
            event.set()

        before = {each: signal.getsignal(each) for each in INTERRUPT_SIGNALS}
        heeded = [each for each in INTERRUPT_SIGNALS if before[each] != signal.SIG_IGN]
        for each in heeded:
            loop.add_signal_handler(each, pressed, each)
        try:
            yield event
        finally:
            for each in heeded:
                loop.remove_signal_handler(each)
                signal.signal(each, before[each] or signal.SIG_DFL)  # asyncio's own, say

    async def ask(self, question: str, answers: set[str]) -> str:
        """Return the first letter of the answer, in lower case; "" for end of input, or without a
        terminal."""
        if self._gone or sys.stdin is None or not sys.stdin.isatty():
            return ""
        self.clear()
        self._asking = True
        try:
            while True:
                sys.stdout.write(f"\n{question}")
                sys.stdout.flush()
                line = await _line()
                if not line or line.strip()[:1].lower() in answers:
                    return line.strip()[:1].lower()
        finally:
            self._asking = False


def exit_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP through SystemExit, so that what this command has started is
    ended too. A signal that is ignored, as SIGHUP is under nohup, stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))


async def _line() -> str:
    """Read a typed line through the event loop: a thread blocked in a read cannot be stopped."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not typed.done():
            typed.set_result(os.read(descriptor, 4096).decode("utf-8", "replace"))

    loop.add_reader(descriptor, read)
    try:
        return await typed
    finally:
        loop.remove_reader(descriptor)
