"""Logging in: running ssh until a connection is open, and handling the questions that it asks."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from rankroom.errors import SshError, with_remedy
from rankroom.ssh import askpass
from rankroom.ssh.failures import explain
from rankroom.ssh.socket_folder import folder
from rankroom.system import commands, python_command
from rankroom.system.files import write_atomically

# For all that follows the key exchange, not counting time to answer questions.
AUTHENTICATION_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.5


async def log_in(
    words: Sequence[str],
    host: str,
    terminal: bool,
    connect_s: float,
    asked: Callable[[str], None],
) -> commands.Completed:
    """Run the ssh command `words` until it has logged in or failed; call `asked` with its
    questions.

    Raises SshError if a question is not answered, or the login gets stuck.
    """
    said: list[str] = []
    asks = terminal  # in a terminal it is not seen when ssh asks
    moved = time.monotonic()

    def heard(line: str) -> None:
        nonlocal asks, moved
        said.append(line)
        moved = time.monotonic()
        if line.startswith(askpass.ASKS):
            asks = True
            asked(line.removeprefix(askpass.ASKS))
        elif line.startswith(askpass.ANSWERED):
            asks = False
        elif line.startswith((askpass.UNANSWERED, askpass.REFUSED)):
            fail()  # ssh would ask again

    def fail(why: str = "") -> NoReturn:
        raise explain(host, commands.Completed(tuple(words), 255, "\n".join([*said, why])))

    environment = None if terminal else _asking(host)
    running = asyncio.ensure_future(
        commands.run(words, env=environment, terminal=terminal, on_line=heard)
    )
    try:
        while not (await asyncio.wait({running}, timeout=POLL_INTERVAL_S))[0]:
            # ssh does not notice if the connection is cut during authentication.
            if not asks and time.monotonic() - moved > connect_s + AUTHENTICATION_TIMEOUT_S:
                fail(STUCK)
        return await running
    except OSError as error:
        raise SshError(NO_SSH.format(ssh=words[0], error=error), "no ssh") from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def at_a_terminal() -> bool:
    """Whether ssh should ask its questions in this process's terminal."""
    # Users of a Jupyter server look at a browser, not at the terminal where it was started.
    return sys.stdin is not None and sys.stdin.isatty() and "jupyter_server" not in sys.modules


def _asking(host: str) -> dict[str, str]:
    """Return the environment in which ssh asks its questions through the module `questions`."""
    script = folder() / "ask"
    python = f'exec {shlex.join(python_command.command("rankroom.ssh.askpass"))} "$@"\n'
    try:
        write_atomically(script, f"#!/bin/sh\n{python}", mode=0o700)
    except OSError as error:
        words = SCRIPT_NOT_WRITTEN.format(script=script, error=with_remedy(error))
        raise SshError(words, "folder") from None
    return {
        # Older versions ask only where there is a display.
        "DISPLAY": "none:0",
        **os.environ,
        "SSH_ASKPASS": str(script),
        "SSH_ASKPASS_REQUIRE": "force",
        askpass.HOST_VARIABLE: host,
    }


STUCK = "Connection timed out after the key exchange"
NO_SSH = "cannot run `{ssh}`: {error}; install OpenSSH's client, or name it with RANKROOM_SSH"
SCRIPT_NOT_WRITTEN = "cannot write {script}, through which ssh asks its questions: {error}"
