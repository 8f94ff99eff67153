"""Runs Python code that arrives in lines of JSON, and answers each with a line of JSON.

`listener.py [ASKED SAID]` reads the one file and writes the other, or uses the standard streams.
The code can pass coroutines to `go` and `wait`, which use an event loop in a thread.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

loop = asyncio.new_event_loop()


def go(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(coroutine, loop)


def wait(coroutine: Coroutine[Any, Any, Any], seconds: float = 90) -> Any:
    return go(coroutine).result(seconds)


def answer(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """The value of the code's last expression, or its traceback."""
    try:
        tree = ast.parse(source)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr):
            exec(compile(tree, "cell", "exec"), names)
            return {"value": None}
        tree.body.pop()
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        return {"value": json.loads(json.dumps(value, default=repr))}
    except BaseException:
        return {"error": traceback.format_exc()}


def main(asked: TextIO, said: TextIO) -> None:
    threading.Thread(target=loop.run_forever, daemon=True).start()
    sys.path[0] = str(Path(__file__).parents[1] / "support")
    names: dict[str, Any] = {"go": go, "wait": wait}
    for line in asked:
        print(json.dumps(answer(json.loads(line), names)), file=said, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        with Path(sys.argv[1]).open() as asked, Path(sys.argv[2]).open("w") as said:
            main(asked, said)
    else:
        said, sys.stdout = sys.stdout, sys.stderr  # what the code prints goes to the log
        main(sys.stdin, said)
