"""Where commands run: on this machine, or on a login host over ssh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rankroom.ssh.connection import SshConnection
from rankroom.system import commands


class Host(Protocol):
    """A machine that runs commands for us."""

    @property
    def name(self) -> str:
        """The login host as ssh takes it; empty: this machine."""

    def words(self, argv: Sequence[str]) -> list[str]:
        """The command line, on this machine, that runs `argv` there."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        input: str | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> commands.Completed:
        """Run `argv` there to its end. Raises SshError where the place cannot be reached."""

    async def open(self) -> None:
        """Reach the place, asking what must be asked. Raises SshError with the remedy."""

    async def close(self) -> None:
        """Let go of what was opened for us there."""


class LocalHost:
    """This machine."""

    name = ""

    def words(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        input: str | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> commands.Completed:
        return await commands.run(argv, timeout=timeout, input=input, on_line=on_line)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


def place(login: str, terminal: bool | None = None) -> Host:
    """This machine for an empty `login`, else the connection to that host.

    What ssh asks is asked in the terminal, or with `terminal` false as a question that
    `questions.pending` finds; by default wherever the user of this process looks.
    """
    return SshConnection(login, terminal) if login else LocalHost()
