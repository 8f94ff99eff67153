"""The base of all routes: the store, threads, one-line errors as JSON, checked arguments."""

# The types of Jupyter's handlers and decorators cannot be relied on.
# mypy: disallow-untyped-decorators=False, disallow-subclassing-any=False
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, authenticated

from rankroom.cluster.start_request import StartRequestError
from rankroom.errors import (
    FileError,
    NoClusterError,
    NotYoursError,
    RankroomError,
    RecordError,
    RunOverError,
    StartError,
    UnreadableRecordError,
    file_error,
)
from rankroom.record.store import Store
from rankroom.server.metric_routes import MetricCurves
from rankroom.server.profile_routes import Profiles
from rankroom.server.threads import Threads

# Any other error is a fault of the request: 400.
HTTP_STATUS: dict[type[RankroomError], int] = {
    RecordError: 404,
    NotYoursError: 403,
    RunOverError: 409,
    NoClusterError: 410,
    StartError: 503,
    FileError: 503,
    UnreadableRecordError: 503,
}


Route = Callable[..., Coroutine[Any, Any, None]]
PLAIN_TEXT = "text/plain; charset=utf-8"


def allowed(method: Route) -> Route:
    """Restrict a route's method to authenticated users that the server's authorizer permits."""
    made: Route = authenticated(authorized(method))
    return made


class Handler(APIHandler):
    """The base class of all routes."""

    auth_resource = "rankroom"  # what the server's authorizer permits users to read or write

    def initialize(
        self, store: Store, threads: Threads, profiles: Profiles, curves: MetricCurves
    ) -> None:
        self.store = store
        self.threads = threads
        self.profiles = profiles
        self.curves = curves
        self.gone = False

    def on_connection_close(self) -> None:
        self.gone = True
        super().on_connection_close()

    def set_default_headers(self) -> None:
        super().set_default_headers()
        # So that a browser never takes what a rank wrote for a page.
        self.set_header("X-Content-Type-Options", "nosniff")

    def number(self, name: str, default: float, most: float) -> float:
        """Return the query argument `name`, a number from 0 up, limited to `most`. A bad one is
        answered with 400."""
        text = self.get_query_argument(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise HTTPError(400, f"{name}={text!r}: give a number from 0 up")
        return min(value, most)

    def words(self) -> dict[str, str]:
        """Return the body, a JSON object of strings; {} without one. A bad one is answered with
        400."""
        body = self.get_json_body()
        if body is None:
            return {}
        if not isinstance(body, dict) or not all(isinstance(v, str) for v in body.values()):
            raise HTTPError(400, "the body must be a JSON object of strings")
        return body

    async def download(self, name: str, kind: str, pieces: Iterator[bytes]) -> None:
        """Send a file piece by piece as it is made; each piece is made in a thread."""
        self.set_header("Content-Type", kind)  # the first flush sends it
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                self.write(piece)
                await self.flush()
        except StreamClosedError:
            return
        except Exception:
            if self._headers_written:
                # A response that ends normally would be taken for the whole file.
                self.detach().close()
            raise
        self.finish(set_content_type=kind)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, OSError):
            error = file_error(error) or error
        message = str(error) if isinstance(error, RankroomError) else ""
        # The end of a log may follow, which is meant for a terminal.
        message = message.partition("\n")[0].rstrip(":")
        if isinstance(error, RankroomError):
            self.set_status(HTTP_STATUS.get(type(error), 400))
        elif isinstance(error, HTTPError):
            message = error.log_message or error.reason or ""
        said: dict[str, Any] = {"message": message or self._reason}
        if isinstance(error, StartRequestError):
            said["errors"] = error.errors
        self.finish(json.dumps(said))

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        # The browser was sent the message; a traceback in the server's log would say no more.
        if not isinstance(error, RankroomError):
            super().log_exception(kind, error, trace)
