"""The process of ssh's that holds a connection open, seen through its socket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

HELLO = 1  # of OpenSSH's PROTOCOL.mux: a length, MUX_MSG_HELLO, the version
GREETS_S = 5.0


@contextlib.asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[asyncio.StreamReader | None]:
    """A connection to the process behind `socket`, which ends with it; None if there is none.

    Until it is closed, the connection is in use, and does not end for idleness.
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
    """Whether a connection is open behind `socket`."""
    async with connected(socket) as reader:
        return reader is not None


async def gone(reader: asyncio.StreamReader) -> None:
    """Returns when the process is gone, and with it the connection."""
    with contextlib.suppress(OSError):
        while await reader.read(1 << 12):
            pass


async def _greets(reader: asyncio.StreamReader) -> bool:
    try:
        head = await asyncio.wait_for(reader.readexactly(8), GREETS_S)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return False
    return bool(struct.unpack(">II", head)[1] == HELLO)
