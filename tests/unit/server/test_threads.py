"""Slow work in a server has a time limit, and the server loads no package needlessly."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from rankroom.errors import StartError
from rankroom.server import threads
from rankroom.server.threads import Threads
from rankroom.server.workshop_routes import Own

T = TypeVar("T")


def test_a_request_that_takes_too_long_gets_a_timeout_error(monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(threads, "REQUEST_TIMEOUT_S", 0.1)
    with pytest.raises(StartError, match=r"no reply within .* the status will show"):
        asyncio.run(Threads().run(lambda: free.wait(60)))
    with pytest.raises(StartError, match=r"no reply within 0 s$"):
        asyncio.run(Threads().look("profile", lambda: free.wait(60)))
    free.set()


async def while_looks_take_long(ask: Callable[[Threads], Awaitable[T]]) -> T:
    """Return the result of `ask` while all threads for looks are busy."""
    free, pools = threading.Event(), Threads()
    looks = [
        asyncio.create_task(pools.look(f"profile {i}", lambda: free.wait(60)))
        for i in range(threads.LOOKS + 1)
    ]
    await asyncio.sleep(0)
    try:
        return await asyncio.wait_for(ask(pools), 20)
    finally:
        free.set()
        await asyncio.gather(*looks)


def test_cluster_states_are_served_while_all_look_threads_are_busy():
    asked = while_looks_take_long(lambda pools: pools.state("clusters", lambda: "they run"))
    assert asyncio.run(asked) == "they run"


def test_a_learners_page_is_served_while_all_look_threads_are_busy():
    told: list[dict[str, Any]] = []

    async def ask(pools: Threads) -> None:
        handler = SimpleNamespace(sharing=None, threads=pools, finish=told.append)
        await inspect.unwrap(Own.get)(handler)

    asyncio.run(while_looks_take_long(ask))
    assert [each["role"] for each in told] == [""]


def test_importing_the_server_does_not_load_ipyparallel():
    code = "import sys, rankroom.server; print('ipyparallel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
