"""With this folder on PYTHONPATH, a supervisor kills itself at the step that KILLED_AT names.

KILLED_AT is `before` or `after`, a `module:Class.method` or `module:function`, and a number n: the
supervisor dies before or after the nth call.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from typing import Any


def kill_at(when: str, place: str, count: int) -> None:
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    real = getattr(owner, name)
    calls = 0

    @functools.wraps(real)
    def call(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if when == "before" and calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **named)
        if when == "after" and calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


if "rankroom.supervisor.supervisor" in sys.orig_argv and os.environ.get("KILLED_AT"):
    when, place, count = os.environ["KILLED_AT"].split()
    kill_at(when, place, int(count))
