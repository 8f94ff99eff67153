"""The supervisor in the job of a cluster on a site, reached through the ssh connection."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any

from rankroom.errors import RankroomError, SshError
from rankroom.record.cluster_file import Remote
from rankroom.rpc.client import Answer, Client
from rankroom.scheduler.site import Site
from rankroom.ssh.connection import SshConnection, Tell
from rankroom.ssh.host import Host

END_RANKS_TIMEOUT_S = 10.0  # for the supervisor to end its ranks


class JobSupervisor:
    """The connection to the supervisor, for the agent of the cluster in `folder`.

    `told(state, words)` is called with the state of the ssh connection to the supervisor's node,
    where the site needs one of its own for that.
    """

    def __init__(self, site: Site, place: Host, folder: Path, remote: Remote, told: Tell) -> None:
        self.address = self.node = ""  # empty until the job has reported them
        self.cut = asyncio.Event()  # set while the ssh connection is lost
        self._key = ""
        self._site = site
        self._place = place
        self._folder = folder
        self._remote = remote
        self._told = told
        self._client: Client | None = None
        self._hung_up = asyncio.Event()  # set once `_client` has been given up
        self._to_node: SshConnection | None = None  # used where the site allows ssh to its nodes

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent to it."""
        return self._client is not None

    def found(self, written: dict[str, Any]) -> None:
        """Take the supervisor's address and key from the cluster.json that it has written."""
        self.address, self._key = written["rpc"], written["rpc_key"]
        self.node = str(written["host"])

    async def connect(self) -> None:
        """Open the way to it, without checking that it replies. Raises SshError."""
        self._client = Client(await self._way(), self._key, beats=True)
        self._hung_up = asyncio.Event()

    async def ask(self, seconds: float, *buffers: bytes, **question: Any) -> Answer:
        """Send a request and return the reply. Raises SshError once the connection is lost or given
        up, as no reply can arrive then, and asyncio.TimeoutError after `seconds`."""
        if self._client is None:
            raise SshError(self._remote.words, "unreachable")
        asked = asyncio.wrap_future(self._client.ask(*buffers, **question))
        ends = [asyncio.create_task(each.wait()) for each in (self.cut, self._hung_up)]
        awaited: set[asyncio.Future[Any]] = {asked, *ends}
        try:
            await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if any(each.done() for each in ends):
                raise SshError(LOST.format(where=self._site.login or "its supervisor"), "lost")
            raise asyncio.TimeoutError
        finally:
            for each in awaited:
                each.cancel()

    async def end_ranks(self) -> None:
        """Make it end its ranks, so that their last output gets into the records."""
        with contextlib.suppress(RankroomError, asyncio.TimeoutError):
            await self.ask(END_RANKS_TIMEOUT_S, do="stop")
            known, until = -1, time.monotonic() + END_RANKS_TIMEOUT_S
            while time.monotonic() < until:
                said = await self.ask(END_RANKS_TIMEOUT_S, do="news", known=known)
                known = said["version"]
                if said["cluster"]["state"] in ("stopped", "failed"):
                    return

    async def hang_up(self) -> None:
        """Close the connection; `connect` opens a new one."""
        client, self._client = self._client, None
        self._hung_up.set()
        if client is not None:
            await asyncio.to_thread(client.close)

    async def close(self) -> None:
        """Close the connections to it and to its node, which others use after the job."""
        await self.hang_up()
        if self._to_node is not None:
            await self._to_node.close()
            await self._to_node.end()

    async def _way(self) -> str:
        """Open the way to the supervisor, and return the address here that leads to it."""
        connection = self._place
        if not isinstance(connection, SshConnection):
            return self.address
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        if self._site.ssh_to_nodes:
            self._to_node = connection = SshConnection(connection.name, False, node=self.node)
            await connection.open(self._told)
        digest = hashlib.sha256(str(self._folder).encode()).hexdigest()[:8]
        local = connection.socket.with_name(f"{connection.socket.name[:8]}-{digest}")
        await connection.forward(local, host, int(port))
        return f"ipc://{local}"


LOST = "the connection to {where} is lost; reconnecting automatically, and the ranks keep running"
