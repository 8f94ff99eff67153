"""Where a lab's server listens, and its token: from a file that only its user can read."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import quote

from rankroom.errors import UselessJob

REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Endpoint:
    """The server's address on its own node, and its token."""

    host: str
    port: int
    token: str = field(repr=False)

    def url(self, port: int, page: str = "lab") -> str:
        """Return the URL to open, where `port` of this machine leads there; `page` is its path."""
        return f"http://127.0.0.1:{port}/{quote(page)}?token={self.token}"


def read(text: str) -> Endpoint | None:
    """Return where a server listens, from the text of its file; None if that is incomplete."""
    try:
        about = json.loads(text)
        return Endpoint(str(about["hostname"]), int(about["port"]), str(about["token"]))
    except (ValueError, KeyError, TypeError):
        return None


async def answers(endpoint: Endpoint, port: int) -> bool:
    """Whether the server answers at `port` of this machine.

    Raises UselessJob if it also accepts requests without the token.
    """
    if await _status(port, endpoint.token) != 200:
        return False
    if (status := await _status(port, "")) == 200:
        raise UselessJob(OPEN_TO_ALL.format(status=status))
    return True


async def _status(port: int, token: str) -> int:
    """Return the HTTP status of a request, 0 if there is no reply."""
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/status", headers=headers)

    def ask() -> int:
        # No proxy: the address is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, ValueError):
            return 0

    return await asyncio.to_thread(ask)


OPEN_TO_ALL = (
    "JupyterLab accepts requests without its token (status {status}): its settings at the site let "
    "anyone in. Look for `token`, `password` and `identity_provider_class` in the files that "
    "`jupyter --paths` lists under config"
)
