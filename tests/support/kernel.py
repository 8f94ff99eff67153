"""A real kernel for tests: run code, get what a notebook would show."""

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
    """What a cell showed: text, rich outputs (updates applied), the error in one line and how often
    one was shown, bytes."""

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
        self.shown = Shown()  # of the newest cell, as it comes

    def run(
        self, code: str, timeout: float = 120, after: Any = None, attended: bool = False
    ) -> Shown:
        """Execute `code`, as a front end does that can ask its user if `attended`; `after()` is
        called once the kernel has begun."""
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
        """The last line of `code` as each completion at its end would make it."""
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
        # Where that is left to the garbage collector, pyzmq may wait for its sockets for ever.
        self.manager.context.destroy(linger=0)


def rank_stacks(home: Path) -> str:
    """Where the ranks of all clusters of `home` are, for the report of a test that waited."""
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
