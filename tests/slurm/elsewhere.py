"""A Python process on a machine of the test cluster, with an event loop: code in, values out."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from machines import Machines

LISTENER = """
import ast, asyncio, json, sys, threading, traceback
said, sys.stdout = sys.stdout, sys.stderr
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def go(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop)

def wait(coroutine, seconds=90):
    return go(coroutine).result(seconds)

names = {"go": go, "wait": wait}
for line in sys.stdin:
    try:
        tree = ast.parse(json.loads(line))
        value = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, "cell", "exec"), names)
            value = eval(compile(last, "cell", "eval"), names)
        else:
            exec(compile(tree, "cell", "exec"), names)
        answer = {"value": json.loads(json.dumps(value, default=repr))}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=said, flush=True)
"""


class Elsewhere:
    """Python on `machine` as `user`; `go` and `wait` there take coroutines."""

    def __init__(
        self, machines: Machines, machine: str, user: str, environment: Mapping[str, str]
    ) -> None:
        words = ["env", *(f"{name}={value}" for name, value in environment.items())]
        words += [sys.executable, "-c", LISTENER]
        self._process = machines.start(
            machine, words, user, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def do(self, source: str, seconds: float = 120) -> Any:
        """Run code there; the value of its last expression. Fails with its traceback."""
        assert self._process.stdin is not None
        print(json.dumps(source), file=self._process.stdin, flush=True)
        answer = json.loads(self._answers.get(timeout=seconds) or '{"error": "it has ended"}')
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def until(self, expression: str, seconds: float = 90) -> Any:
        """Wait there until an expression is true; its value."""
        return self.do(
            "import time\n"
            f"_end = time.monotonic() + {seconds}\n"
            f"while not ({expression}) and time.monotonic() < _end: time.sleep(0.02)\n"
            f"assert ({expression}), 'never: ' + {expression!r}\n{expression}",
            seconds + 30,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
