"""Run commands to completion: each is awaited, timed and reaped, with all that it started.

Nothing is ever passed through a shell: a command is a list of words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL_GRACE_S = 3.0
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class Completed:
    """The result of a command; `returncode` is negative for a signal, `output` stdout and
    stderr."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the output, for an error message."""
        return "\n".join(self.output.rstrip().splitlines()[-lines:])

    def failure(self, command: str, host: str) -> str:
        """Return the message for a `command` that failed on `host` (empty: here), with its
        output."""
        how = "timed out" if self.timed_out else f"failed (status {self.returncode})"
        where = f" on {host}" if host else ""
        return f"`{command}`{where} {how}:\n{self.tail() or '(no output)'}"


def without_env(argv: Sequence[str]) -> Sequence[str]:
    """Return a command without its `env` prefix and variables, as it is shown to users."""
    if argv[0] != "env":
        return argv
    unset = {at + 1 for at, word in enumerate(argv) if word == "-u"}
    rest = (at for at, word in enumerate(argv) if at and at not in unset and word != "-u")
    return argv[next(at for at in rest if "=" not in argv[at]) :]


async def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float | None = None,
    input: str | None = None,
    on_line: Callable[[str], None] | None = None,
    keep: int = 4 << 20,
    terminal: bool = False,
    grace: float = KILL_GRACE_S,
) -> Completed:
    """Run a command to its end; return its result, with the last `keep` characters of its output.

    `env` replaces the environment, and `input` is written to stdin. `on_line` is called with each
    line as it is written, without its newline; an exception that it raises ends the command. After
    `timeout` seconds, when the caller is cancelled, and when the command fails, the command and all
    that it started in its process group are ended, with `grace` seconds to clean up. With
    `terminal`, the command stays in our session and may prompt its user. Raises FileNotFoundError
    if there is no such program.
    """
    words = tuple(os.fspath(word) for word in argv)
    # Names of files need not be UTF-8.
    data = None if input is None else input.encode("utf-8", "surrogateescape")
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL if input is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        limit=MAX_LINE_BYTES,
        start_new_session=not terminal,
    )
    given = asyncio.ensure_future(_give(process, data)) if data is not None else None
    lines = _Lines(keep)
    timed_out = False
    try:
        await asyncio.wait_for(_collect(process, lines, on_line), timeout)
    except asyncio.TimeoutError:
        timed_out = True
    finally:
        if given:
            given.cancel()
        await _end(process, process.pid if terminal else -process.pid, grace)
        # No public API closes our end of a pipe that a background process still holds.
        process._transport.close()  # type: ignore[attr-defined]
    # A process blocked on a dead disk has been sent SIGKILL, though its end is not visible yet.
    code = -signal.SIGKILL if process.returncode is None else process.returncode
    return Completed(words, code, "".join(lines.kept)[-keep:], timed_out)


def run_sync(argv: Sequence[str | os.PathLike[str]], **how: Any) -> Completed:
    """`run` for callers without an event loop (the command line)."""
    return asyncio.run(run(argv, **how))


class _Lines:
    """The end of a command's output, bounded in size, and the number of lines in all."""

    def __init__(self, keep: int) -> None:
        self.kept: deque[str] = deque()
        self.count = 0
        self._size, self._most = 0, 2 * keep

    def add(self, text: str) -> None:
        self.kept.append(text)
        self.count += 1
        self._size += len(text)
        while self._size > self._most:
            self._size -= len(self.kept.popleft())


async def _collect(
    process: asyncio.subprocess.Process, lines: _Lines, on_line: Callable[[str], None] | None
) -> None:
    reader = asyncio.ensure_future(_read(process, lines, on_line))
    try:
        while not reader.done():
            over, had = process.returncode is not None, lines.count
            await asyncio.wait({reader}, timeout=0.2)
            if over and lines.count == had:
                break  # a process left in the background (ssh's master) holds the pipe open
        if reader.done():
            reader.result()
        await _exited(process)
    finally:
        reader.cancel()


async def _read(
    process: asyncio.subprocess.Process, lines: _Lines, on_line: Callable[[str], None] | None
) -> None:
    assert process.stdout is not None
    while chunk := await _line(process.stdout):
        text = chunk.decode("utf-8", "replace")
        lines.add(text)
        if on_line:
            on_line(text.rstrip("\r\n"))


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(error.consumed)  # a line over the limit is returned in pieces


async def _give(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    # A command may stop reading its input before the end.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process, whom: int, grace: float) -> None:
    """End what is left of it: SIGTERM, then SIGKILL. A negative `whom` is a process group."""
    if process.returncode is not None:
        if process.returncode and whom < 0:  # it failed: what it started is of no more use
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(whom, signal.SIGTERM)
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(whom, sign)
        try:
            await asyncio.wait_for(_exited(process), grace)
        except asyncio.TimeoutError:
            continue
        except asyncio.CancelledError:  # interrupted again: wait no longer
            with contextlib.suppress(ProcessLookupError):
                os.kill(whom, signal.SIGKILL)
            raise
        return


async def _exited(process: asyncio.subprocess.Process) -> None:
    # Not process.wait(): in some Python versions that also waits for the pipes to close.
    pause = 0.001
    while process.returncode is None:
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.05)
