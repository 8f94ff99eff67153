"""What a command that waits tells: one line written again; and Ctrl-C as a question."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """Standard output and input; where they are no terminal, each change is a line."""

    def __init__(self) -> None:
        self._live = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed
        self._shown = ""
        self._asking = False
        self._gone = False  # the user, who could be asked
        self.page: Callable[[str], None] = self.say

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        click.echo(text)

    def show(self, text: str) -> None:
        """How it stands, in the place of what was shown before."""
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
        """Take back what is shown."""
        if self._live and self._shown:
            sys.stdout.write("\r\x1b[K")
            self._shown = ""

    @contextlib.contextmanager
    def pressed(self) -> Iterator[asyncio.Event]:
        """An event that Ctrl-C sets; so do the ends of the terminal and of the machine."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def pressed(sign: signal.Signals) -> None:
            self._gone = self._gone or sign != signal.SIGINT
            event.set()

        heeded = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]  # nohup
        for each in heeded:
            loop.add_signal_handler(each, pressed, each)
        try:
            yield event
        finally:
            for each in heeded:
                loop.remove_signal_handler(each)

    async def ask(self, question: str, answers: set[str]) -> str:
        """The first letter of what is answered; empty without a terminal to answer at."""
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


def exit_when_told() -> None:
    """Have what this command started end with it, as with any other launcher, once it is told to
    end; not with a terminal, under nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))


async def _line() -> str:
    """A line that is typed, read without a thread that could not be stopped."""
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
