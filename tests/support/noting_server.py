"""A Jupyter server for tests that measures the delays of its event loop.

It writes them, in seconds, to the file `late` in RANKROOM_HOME.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_server.serverapp import main
from tornado.ioloop import IOLoop

from rankroom import config, server

EVERY_S = 0.005


async def note() -> None:
    loop = asyncio.get_running_loop()
    with (config.home() / "late").open("w", buffering=1) as file:
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            file.write(f"{loop.time() - due:.6f}\n")


load = server._load_jupyter_server_extension


def load_and_note(app: Any) -> None:
    load(app)
    config.home().mkdir(parents=True, exist_ok=True)
    IOLoop.current().add_callback(note)


if __name__ == "__main__":
    server._load_jupyter_server_extension = load_and_note
    main()
