"""A Python process on a machine of the test cluster, with an event loop: code in, values out."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machines import Machines

LISTENER = Path(__file__).with_name("listener.py")


class RemotePython:
    """Python on `machine` as `user`; its functions `go` and `wait` take coroutines."""

    def __init__(
        self, machines: Machines, machine: str, user: str, environment: Mapping[str, str]
    ) -> None:
        words = ["env", *(f"{name}={value}" for name, value in environment.items())]
        words += [sys.executable, str(LISTENER)]
        self._process = machines.start(
            machine, words, user, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def do(self, source: str, seconds: float = 120) -> Any:
        """Run code there; return the value of its last expression. Fails with its traceback."""
        assert self._process.stdin is not None
        print(json.dumps(source), file=self._process.stdin, flush=True)
        answer = json.loads(self._answers.get(timeout=seconds) or '{"error": "it has ended"}')
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def until(self, expression: str, seconds: float = 90) -> Any:
        """Wait there until an expression is true; return its value."""
        return self.do(
            "import time\n"
            f"_end = time.monotonic() + {seconds}\n"
            # Evaluated once per round, as its value may change between two evaluations.
            "while True:\n"
            "    _last = time.monotonic() > _end\n"
            f"    if _found := ({expression}): break\n"
            f"    assert not _last, 'never: ' + {expression!r}\n"
            "    time.sleep(0.02)\n"
            "_found",
            seconds + 30,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> RemotePython:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
