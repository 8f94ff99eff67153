"""The connection to a job's supervisor that does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rankroom.errors import SshError
from rankroom.record.cluster_file import Remote
from rankroom.remote.job_supervisor import JobSupervisor
from rankroom.rpc.server import Server
from rankroom.scheduler.site import Site
from rankroom.ssh.host import LocalHost


def test_hanging_up_fails_the_requests_that_are_still_pending(tmp_path: Path):
    server = Server("", tmp_path, lambda question: None)  # it never answers

    async def test() -> None:
        made = JobSupervisor(
            Site("test"), LocalHost(), tmp_path, Remote("test"), lambda state, words: None
        )
        made.found({"rpc": server.address, "rpc_key": server.key, "host": "c1"})
        await made.connect()
        asked = asyncio.create_task(made.ask(600, do="apply"))
        await asyncio.sleep(0.05)
        await made.hang_up()
        with pytest.raises(SshError, match="is lost"):
            await asyncio.wait_for(asked, 20)
        await made.connect()  # requests over the next connection are waited for
        with pytest.raises(asyncio.TimeoutError):
            await made.ask(0.05, do="apply")
        await made.close()

    try:
        asyncio.run(test())
    finally:
        server.close()
