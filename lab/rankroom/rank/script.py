"""A script of the user's, run on a rank as `python script.py` would run it."""

from __future__ import annotations

import builtins
import os
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

from rankroom.rank.shell import leave


class ScriptExit(Exception):
    """The script has ended with another status than 0, or with a message in its place."""


def run(path: str, arguments: Sequence[str]) -> None:
    """Run the script as `__main__`. Raises what it raises, and ScriptExit for its exit status."""
    __tracebackhide__ = True  # IPython leaves it out of what the user reads
    if not Path(path).is_file():
        raise ScriptExit(NO_FILE.format(path=path, folder=Path.cwd(), host=socket.gethostname()))
    before, process = (sys.argv, sys.path[:]), os.getpid()
    threads = set(threading.enumerate())
    # While a cell runs, IPython has taken them away.
    names = {name: leave for name in ("exit", "quit") if not hasattr(builtins, name)}
    vars(builtins).update(names)
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    status: object = 0
    try:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code
        if os.getpid() == process:
            wait_for_rest(threads)
    except BaseException:
        if os.getpid() == process:
            raise
        traceback.print_exc()
        status = 1
    finally:
        sys.argv, sys.path[:] = before
        for name in names:
            vars(builtins).pop(name, None)
    if os.getpid() != process:
        end_fork(status)
    if status not in (None, 0, False):
        raise ScriptExit(status) from None


def wait_for_rest(before: Collection[threading.Thread]) -> None:
    """Wait, as Python does at a program's end, for what it has begun and not ended: what executors
    were given (a checkpoint, perhaps), threads, processes; not for daemons among these."""
    pools = sys.modules.get("concurrent.futures.thread")
    executors = set(getattr(pools, "_threads_queues", ()))
    new = [each for each in threading.enumerate() if each not in before and not each.daemon]
    if end := getattr(pools, "_python_exit", None) if executors & set(new) else None:
        end()  # its threads wait for work as long as there may be more
        vars(pools)["_shutdown"] = False
    for thread in new:
        if thread is not threading.current_thread():
            thread.join()
    if processes := sys.modules.get("multiprocessing"):
        for child in processes.active_children():
            if not child.daemon:
                child.join()


def end_fork(status: object) -> None:
    """End a process that a script or a cell forked, where that ends: it is no second rank."""
    if not (status is None or isinstance(status, int)):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


NO_FILE = "there is no file {path} on {host} (in {folder})"
