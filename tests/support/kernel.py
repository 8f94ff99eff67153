"""A real kernel for tests: run code, and get what a notebook would show."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import start_new_kernel

from rankroom import config
from rankroom.rank.stacks import STACKS_SIGNAL
from rankroom.record.cluster_file import ClusterPaths

MIME = "application/vnd.rankroom.run+json"


@dataclass
class Shown:
    """What a cell showed; updates of rich outputs are applied.

    `error` is the last one, `errors` their number, `iopub_bytes` the size of all messages.
    """

    stdout: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    errors: int = 0
    iopub_bytes: int = 0

    @property
    def run(self) -> dict[str, Any]:
        """The run.json of the first run view shown."""
        return next(data[MIME]["run"] for data in self.outputs if MIME in data)

    @property
    def text(self) -> str:
        return "\n".join(str(data.get("text/plain", "")) for data in self.outputs)


class Kernel:
    """One ipykernel process."""

    def __init__(self, **env: str) -> None:
        self.manager, self.client = start_new_kernel(startup_timeout=120, env=env)
        self._home = Path(env.get("RANKROOM_HOME") or config.home())
        self.shown = Shown()  # of the newest cell, updated while it runs

    def run(
        self, code: str, timeout: float = 120, after: Any = None, attended: bool = False
    ) -> Shown:
        """Execute `code`; call `after()` once the kernel has begun.

        If `attended`, the code may request input, as in a front end that can ask its user.
        """
        request = self.client.execute(code, allow_stdin=attended)
        shown = self.shown = Shown()
        places: dict[str, int] = {}
        deadline = time.monotonic() + timeout
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            except Empty:
                said = f"nothing more came within {timeout} s, after\n{shown}"
                raise TimeoutError(f"{said}\n{rank_stacks(self._home)}") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            shown.iopub_bytes += len(str(content))
            if kind == "stream" and content["name"] == "stdout":
                shown.stdout += content["text"]
            elif kind in ("display_data", "execute_result"):
                places[content.get("transient", {}).get("display_id", "")] = len(shown.outputs)
                shown.outputs.append(content["data"])
            elif kind == "update_display_data":
                shown.outputs[places[content["transient"]["display_id"]]] = content["data"]
            elif kind == "error":
                shown.error = "\n".join(content["traceback"])
                shown.errors += 1
            elif kind == "status" and content["execution_state"] == "busy" and after:
                after()
                after = None
            elif kind == "status" and content["execution_state"] == "idle":
                return shown

    def complete(self, code: str) -> list[str]:
        """The last line of `code` with each of the completions offered at its end."""
        reply = self.client.complete(code, len(code), reply=True, timeout=120)
        start = reply["content"]["cursor_start"]
        return [(code[:start] + match).split("\n")[-1] for match in reply["content"]["matches"]]

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=120)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        # If this is left to the garbage collector, pyzmq may wait for open sockets forever.
        self.manager.context.destroy(linger=0)


def rank_stacks(home: Path) -> str:
    """The stacks of all ranks in `home`'s clusters, for the error of a test that timed out."""
    found = []
    for folder in home.glob("clusters/*"):
        paths = ClusterPaths(folder.name, folder.parent)
        info = paths.read()
        for rank in info.ranks if info else []:
            with contextlib.suppress(OSError):
                os.kill(rank.pid, STACKS_SIGNAL)
                time.sleep(0.2)
                text = (paths.spool(rank.rank) / "stacks").read_text()
                found.append(f"{folder.name}, rank {rank.rank}:\n{text}")
    return "\n".join(found)
