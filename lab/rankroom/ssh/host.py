"""Where commands run: on this machine, or on a login host over ssh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankroom.ssh.connection import SshConnection
from rankroom.system import commands


class LocalHost:
    """This machine."""

    name = ""

    async def run(self, argv: Sequence[str], **how: Any) -> commands.Completed:
        return await commands.run(argv, **how)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


# A machine that runs commands for us. Its methods raise SshError where it cannot be reached.
Host = LocalHost | SshConnection


def place(login: str, terminal: bool | None = None) -> Host:
    """Return this machine for an empty `login`, else the connection to that host.

    ssh asks its questions in the terminal, or if `terminal` is false through the module
    `questions`; by default, where the user of this process is likely to look.
    """
    return SshConnection(login, terminal) if login else LocalHost()
