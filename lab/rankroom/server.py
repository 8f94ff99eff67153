"""The Jupyter server extension: routes over the store and the ladder, without logic of their own.

Every handler is authenticated; nothing here blocks the server's event loop (a home directory may
be a slow network file system, so files are read in threads).
"""

# Jupyter's handlers and decorators carry no types that hold.
# mypy: disallow-untyped-decorators=False, disallow-subclassing-any=False
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, authenticated

from rankroom import __version__, record
from rankroom.errors import (
    NoClusterError,
    NotYoursError,
    RankroomError,
    RecordError,
    RunOverError,
    StartError,
)
from rankroom.ladder import Ladder
from rankroom.salvage import TendedStore
from rankroom.spec import parse_ranks
from rankroom.store import Store
from rankroom.store.download import log_text
from rankroom.store.tail import LIMIT
from rankroom.traces import chrome_json, compressed

# A proxy in front may cut idle requests at a minute; a browser asks again anyway.
LONGEST_WAIT = 50.0
LARGEST = 16 * LIMIT
PLAIN = "text/plain; charset=utf-8"
GZIP = "application/gzip"
# What is none of these is the fault of the request.
STATUS: dict[type[RankroomError], int] = {
    RecordError: 404,
    NotYoursError: 403,
    RunOverError: 409,
    NoClusterError: 410,
    StartError: 503,
}


class Handler(APIHandler):
    """What all routes share: the store, the ladder, JSON errors, checked numbers."""

    def initialize(self, store: Store, ladder: Ladder) -> None:
        self.store = store
        self.ladder = ladder
        self.gone = False

    def on_connection_close(self) -> None:
        self.gone = True
        super().on_connection_close()

    def set_default_headers(self) -> None:
        super().set_default_headers()
        # What a rank wrote is never taken for a page.
        self.set_header("X-Content-Type-Options", "nosniff")

    def number(self, name: str, default: float, most: float) -> float:
        """The query argument `name`, from 0 to `most`. A bad one is answered with 400."""
        text = self.get_query_argument(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise HTTPError(400, f"{name}={text!r}: give a number from 0 up")
        return min(value, most)

    async def download(self, name: str, kind: str, pieces: Iterator[bytes]) -> None:
        """Send a file piece by piece as it is made; each piece is made in a thread."""
        self.set_header("Content-Type", kind)  # the first flush sends it
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        try:
            while piece := await asyncio.to_thread(next, pieces, b""):
                self.write(piece)
                await self.flush()
        except StreamClosedError:
            return
        self.finish(set_content_type=kind)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        message = str(error) if isinstance(error, RankroomError) else ""
        # The end of a log may follow, which is for a terminal.
        message = message.partition("\n")[0].rstrip(":")
        if isinstance(error, RankroomError):
            self.set_status(STATUS.get(type(error), 400))
        elif isinstance(error, HTTPError):
            message = error.log_message or error.reason or ""
        self.finish(json.dumps({"message": message or self._reason}))

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        # The one line went to the browser; a traceback in the server's log would say no more.
        if not isinstance(error, RankroomError):
            super().log_exception(kind, error, trace)


class Version(Handler):
    @authenticated
    async def get(self) -> None:
        self.finish({"version": __version__, "record": record.VERSION})


class Runs(Handler):
    @authenticated
    async def get(self) -> None:
        limit = int(self.number("limit", 100, 10_000))
        runs = await asyncio.to_thread(self.store.newest, limit)
        self.finish({"runs": [run.to_json() for run in runs]})


class OneRun(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        self.finish(run.to_json())


class Events(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        after = int(self.number("after", 0, 2**53))
        limit = int(self.number("limit", LIMIT, LARGEST))
        wait = self.number("wait", 0, LONGEST_WAIT)
        tail = self.store.tail(run_id, after)
        known = self.get_query_argument("changed", "") or None
        chunk = await tail.next(max(limit, 1), wait, lambda: self.gone, known)
        self.set_header("X-Rankroom-Next", str(chunk.next))
        self.set_header("X-Rankroom-State", chunk.state)
        self.set_header("X-Rankroom-Size", str(chunk.size))
        self.set_header("X-Rankroom-Changed", chunk.changed)
        self.finish(chunk.data, set_content_type="application/x-ndjson")


class Log(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        asked = self.get_query_argument("rank", "")
        ranks = set(parse_ranks(asked, run.size)) if asked else None
        await self.download(f"{run.id}.log", PLAIN, log_text(self.store.events(run_id), ranks))


class Trace(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        run = await asyncio.to_thread(self.store.load, run_id)
        pieces = compressed(chrome_json(self.store, run_id))
        await self.download(f"{run.id}.trace.json.gz", GZIP, pieces)


class Source(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        source = await asyncio.to_thread(self.store.source, run_id)
        self.finish(source, set_content_type=PLAIN)


class Interrupt(Handler):
    @authenticated
    async def post(self, run_id: str) -> None:
        self.finish({"message": await self.ladder.interrupt(run_id)})


class Release(Handler):
    @authenticated
    async def post(self, run_id: str) -> None:
        self.finish({"message": await self.ladder.release(run_id)})


class Restart(Handler):
    @authenticated
    async def post(self, run_id: str) -> None:
        ranks = self.get_query_argument("rank", "")
        self.finish({"message": await self.ladder.restart(run_id, ranks)})


class Stacks(Handler):
    @authenticated
    async def get(self, run_id: str) -> None:
        stacks = await self.ladder.stacks(run_id)
        self.finish({"stacks": {str(rank): text for rank, text in stacks.items()}})


_RUN = r"rankroom/runs/([^/]+)"
ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/version", Version),
    (r"rankroom/runs", Runs),
    (_RUN, OneRun),
    (_RUN + "/events", Events),
    (_RUN + "/log", Log),
    (_RUN + "/trace", Trace),
    (_RUN + "/source", Source),
    (_RUN + "/stacks", Stacks),
    (_RUN + "/interrupt", Interrupt),
    (_RUN + "/release", Release),
    (_RUN + "/restart", Restart),
]


def _load_jupyter_server_extension(server_app: Any) -> None:
    """Called by Jupyter: add the routes under the server's base URL."""
    web_app = server_app.web_app
    base = web_app.settings["base_url"]
    store = TendedStore()
    parts = {"store": store, "ladder": Ladder(store)}
    web_app.add_handlers(".*$", [(url_path_join(base, path), h, parts) for path, h in ROUTES])


# The name before jupyter_server 2, which some tools still look for.
load_jupyter_server_extension = _load_jupyter_server_extension
