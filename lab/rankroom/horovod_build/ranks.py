"""A few ranks on this machine, without a cluster: for `rankroom horovod check` and for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from rankroom.system.commands import Completed, run

LOOPBACK = "127.0.0.1"
PORTS = "RANKROOM_RENDEZVOUS_PORTS"
ENDED = "(ended, because another rank had failed)\n"
FAILURE_GRACE_S = 10.0  # how long ranks may still take once one of them has failed


def run_ranks(
    argv: Sequence[str],
    size: int = 2,
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    inits: int = 1,
) -> list[Completed]:
    """Run `python *argv` on `size` ranks that can `hvd.init()`; return their results, by rank.

    PORTS holds a fresh port for each of `inits`; the first one is set already. When one rank fails,
    the others are ended FAILURE_GRACE_S later, as they may wait for it forever.
    """
    with contextlib.ExitStack() as servers:
        ports = [servers.enter_context(rendezvous(size)) for _ in range(inits)]
        met = {PORTS: ",".join(map(str, ports)), **(env or {})}
        worlds = [
            {**os.environ, **_environment(rank, size, ports[0]), **met} for rank in range(size)
        ]
        return asyncio.run(_run_all([sys.executable, *argv], worlds, timeout))


async def _run_all(
    argv: Sequence[str], worlds: Sequence[Mapping[str, str]], timeout: float
) -> list[Completed]:
    ranks = [asyncio.ensure_future(run(argv, env=world, timeout=timeout)) for world in worlds]
    for done in asyncio.as_completed(ranks):
        if not (await done).ok:
            break
    late = (await asyncio.wait(ranks, timeout=FAILURE_GRACE_S))[1]
    for rank in late:
        rank.cancel()
    await asyncio.gather(*ranks, return_exceptions=True)
    ended = Completed(tuple(argv), -15, ENDED)
    return [ended if rank.cancelled() else rank.result() for rank in ranks]


def first_failure(done: Sequence[Completed]) -> int | None:
    """Return a rank that failed by itself, not one that was ended for it; None if none failed."""
    failed = [rank for rank, end in enumerate(done) if not end.ok]
    return min(failed, key=lambda rank: done[rank].output == ENDED, default=None)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo0" if sys.platform == "darwin" else "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        # Ranks that each use all cores would compete for them.
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def rendezvous(size: int) -> Iterator[int]:
    """Run Horovod's own rendezvous server, on the loopback interface only; yield its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((LOOPBACK, 0), RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
