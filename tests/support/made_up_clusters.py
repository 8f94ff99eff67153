"""A Jupyter server for tests, and a supervisor of clusters that behave as their names say.

The file `acted` in RANKROOM_HOME lists what they were asked to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from jupyter_server.serverapp import main

from rankroom import config
from rankroom.cluster.launch import SUPERVISOR
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.rpc.server import Question, Server

NAMES = ("fine", "idle", "broken", "slow", "deaf", "next")
SIZE = 4


class MadeUp:
    """A cluster without ranks, of which this process is the supervisor."""

    def __init__(self, name: str) -> None:
        self.paths = ClusterPaths(name)
        self.paths.make(SIZE)
        self._server = Server("", self.paths.folder, self.take)
        self.info = ClusterInfo(
            name, SIZE, "running", supervisor=os.getpid(), rpc=self._server.address,
            rpc_key=self._server.key, ready=list(range(SIZE)),
        )  # fmt: skip
        if name == "deaf":
            self._server.close()
        self.paths.write(self.info)

    def take(self, question: Question) -> None:
        what = question.content["do"]
        ranks = question.content.get("ranks")
        self._note(f"{what} {','.join(map(str, ranks))}" if ranks else what)
        if self.info.name == "next" and (run := question.content.get("run")):
            # Another run has begun there.
            question.answer(error="RunOverError", text=f"run {run} is over: nothing is left")
            return
        if self.info.name == "broken":
            raise RuntimeError("a broken pipe")
        if self.info.name == "idle":
            text = "no rank of idle runs a cell; its log ends with:\nof its log"
            question.answer(error="UsageError", text=text)
            return
        threading.Thread(target=self._answer, args=(question,)).start()

    def _answer(self, question: Question) -> None:
        while self.info.name == "slow" and not (config.home() / "go").exists():
            time.sleep(0.01)
        answer: dict[str, Any] = {
            "release": {"text": f"released torch on the ranks of {self.info.name}"},
            "stacks": {"stacks": {"0": "main:\n  x", "1": "<b>"}},
            "complete": self._possible(question.content),
            "answer": {"ranks": [int(rank) for rank in question.content.get("prompts", ())]},
        }.get(question.content["do"], {})
        for rank in question.content.get("ranks") or []:
            self.info.restarts[str(rank)] = self.info.restarts.get(str(rank), 0) + 1
        self.paths.write(self.info)
        question.answer(**answer)

    def _possible(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = [f"loss {asked['rank']}:{asked['prompt']}"] if asked["do"] == "complete" else []
        return {"begin": 2, "matches": found}

    def _note(self, what: str) -> None:
        with (config.home() / "acted").open("a") as file:
            file.write(f"{self.info.name} {what}\n")


def supervise() -> None:
    made = [MadeUp(name) for name in NAMES]
    print("ready", flush=True)
    sys.stdin.read()  # until the server has ended
    assert made


def serve() -> None:
    argv = [sys.executable, __file__, SUPERVISOR]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as beside:
        assert beside.stdout and beside.stdout.readline() == b"ready\n"
        main()


def start() -> None:
    if SUPERVISOR in sys.argv:
        supervise()
    else:
        serve()


if __name__ == "__main__":
    start()
