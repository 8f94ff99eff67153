"""A Jupyter server for tests, whose ladder finds clusters that do what their names say.

What they were asked to do is noted in the file `acted` at home.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from jupyter_server.serverapp import main

from rankroom import config
from rankroom.cluster import control
from rankroom.errors import NO_CLUSTER, NoClusterError, StartError, UsageError


class MadeUp:
    """A cluster without ranks; see `attach` for the names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def interrupt(self) -> None:
        self._act("interrupt")

    def release(self) -> str:
        self._act("release")
        return f"released torch on the ranks of {self.name}"

    def stacks(self) -> dict[int, str]:
        self._act("stacks")
        return {0: "main:\n  x", 1: "<b>"}

    def restart(self, ranks: Sequence[int]) -> None:
        self._act(f"restart {','.join(map(str, ranks))}")

    def close(self) -> None:
        self._note("close")

    def _act(self, what: str) -> None:
        self._note(what)
        if self.name == "idle":
            raise UsageError(f"no rank of {self.name} runs a cell; its log ends with:\nof its log")
        if self.name == "broken":
            raise RuntimeError("a broken pipe\nand a traceback")
        while self.name == "slow" and not (config.home() / "go").exists():
            time.sleep(0.01)

    def _note(self, what: str) -> None:
        with (config.home() / "acted").open("a") as file:
            file.write(f"{self.name} {what}\n")


def attach(name: str) -> MadeUp:
    if name == "gone":
        raise NoClusterError(NO_CLUSTER)
    if name == "deaf":
        raise StartError(f"cluster {name} does not answer; its controller said:\nof its log\n")
    return MadeUp(name)


if __name__ == "__main__":
    control.attach = attach
    main()
