"""ssh's master process, which holds a connection open, as seen through its control socket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

# MUX_MSG_HELLO in OpenSSH's PROTOCOL.mux; follows the length, precedes the version.
HELLO_MESSAGE_TYPE = 1
HELLO_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[asyncio.StreamReader | None]:
    """Connect to the master process behind `socket`; yields None if there is none.

    The stream ends when that process does. While it is open, ssh's connection counts as in use, and
    is not closed for being idle.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        yield None
        return
    try:
        yield reader if await _greets(reader) else None
    finally:
        writer.close()


async def alive(socket: Path) -> bool:
    """Whether the ssh connection behind `socket` is open."""
    async with connected(socket) as reader:
        return reader is not None


async def gone(reader: asyncio.StreamReader) -> None:
    """Wait until the master process is gone, and with it the connection."""
    with contextlib.suppress(OSError):
        while await reader.read(1 << 12):
            pass


async def _greets(reader: asyncio.StreamReader) -> bool:
    try:
        head = await asyncio.wait_for(reader.readexactly(8), HELLO_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return False
    return bool(struct.unpack(">II", head)[1] == HELLO_MESSAGE_TYPE)
