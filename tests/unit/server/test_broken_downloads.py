"""A download sent in pieces: if one fails, the part received is not taken for the whole."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPError
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from rankroom.server.handler import PLAIN_TEXT, Handler


def pieces() -> Iterator[bytes]:
    yield b"the first line\n"
    raise OSError(errno.ESTALE, "Stale file handle")


class Broken(RequestHandler):
    download = Handler.download

    async def get(self) -> None:
        await self.download("run.log", PLAIN_TEXT, pieces())


def test_a_download_that_fails_midway_is_received_as_incomplete():
    async def fetch() -> None:
        server = HTTPServer(Application([("/log", Broken)]))
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        try:
            await AsyncHTTPClient().fetch(f"http://127.0.0.1:{sockets[0].getsockname()[1]}/log")
        finally:
            server.stop()

    with pytest.raises(HTTPError) as raised:
        asyncio.run(fetch())
    assert raised.value.code == 599  # tornado's client: the reply is incomplete
