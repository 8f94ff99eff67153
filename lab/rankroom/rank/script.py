"""A script of the user's, run on a rank as `python script.py` would run it."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import functools
import os
import runpy
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.rank.shell import leave


class ScriptExit(Exception):
    """The script has ended with another status than 0, or with a message in its place."""


def run(path: str, arguments: Sequence[str], is_module: bool = False) -> None:
    """Run the script as `__main__`, or a module as `python -m` does, whose name `path` is then.

    Raises what it raises, and ScriptExit for its exit status.
    """
    __tracebackhide__ = True  # IPython leaves it out of what the user reads
    first = Path.cwd() if is_module else Path(path).resolve().parent
    if not is_module and not Path(path).is_file():
        raise ScriptExit(NO_FILE.format(path=path, folder=first.cwd(), host=socket.gethostname()))
    before, process = (sys.argv, sys.path[:]), os.getpid()
    threads = set(threading.enumerate())
    # While a cell runs, IPython has taken them away.
    names = {name: leave for name in ("exit", "quit") if not hasattr(builtins, name)}
    vars(builtins).update(names)
    sys.argv = [path, *arguments]
    torch_adapter.is_in_script = True
    sys.path.insert(0, str(first))
    status: object = 0
    try:
        with exit_functions(first), without_event_loop():
            try:
                if is_module:
                    runpy.run_module(path, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                status = end.code
            if os.getpid() == process:
                wait_for_rest(threads)
        if os.getpid() == process:
            end_tracking(_code(status))
    except BaseException:
        if os.getpid() == process:
            end_tracking(1)
            raise
        traceback.print_exc()
        status = 1
    finally:
        sys.argv, sys.path[:] = before
        torch_adapter.is_in_script = False
        for name in names:
            vars(builtins).pop(name, None)
    if os.getpid() != process:
        end_fork(status)
    if status not in (None, 0, False):
        raise ScriptExit(status) from None


@contextlib.contextmanager
def without_event_loop() -> Iterator[None]:
    """Have this thread's event loop, which runs us, not be seen: a program has begun none yet, and
    calls `asyncio.run`."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    if loop is None or task is None:
        yield
        return
    asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        asyncio.tasks._enter_task(loop, task)
        asyncio.set_event_loop(loop)  # `asyncio.run` leaves none


@contextlib.contextmanager
def exit_functions(folder: Path) -> Iterator[None]:
    """Call at the end, the last one first, what a script in `folder` has registered with atexit.

    What libraries register is left for the end of the process: the next run needs them as they are.
    """
    own: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
    process, before = os.getpid(), (atexit.register, atexit.unregister)

    def register(function: Any, /, *args: Any, **named: Any) -> Any:
        # Who has kept it from a script that is over registers something for the process.
        if atexit.register is not register or not _is_below(folder, function):
            return before[0](function, *args, **named)
        own.append((function, args, named))
        return function

    def unregister(function: Any, /) -> None:
        own[:] = [each for each in own if each[0] != function]
        before[1](function)

    vars(atexit).update(register=register, unregister=unregister)
    try:
        yield
    finally:
        vars(atexit).update(register=before[0], unregister=before[1])
        while own and os.getpid() == process:
            function, args, named = own.pop()
            try:
                function(*args, **named)
            except (Exception, SystemExit):
                print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)
                traceback.print_exc()


def _is_below(folder: Path, function: Any) -> bool:
    """Whether a function is of the script in `folder`, or of a module below that which is not
    installed there."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None)
    if name == "__main__":
        return True
    file = Path(getattr(sys.modules.get(name or ""), "__file__", None) or "")
    is_installed = {"site-packages", "dist-packages"} & {*file.parts}
    is_pythons = file.is_relative_to(sysconfig.get_path("stdlib"))
    return file.is_relative_to(folder) and not is_installed and not is_pythons


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


def end_tracking(code: int) -> None:
    """Have a run of Weights & Biases be sent and ended, as at the end of a program: ranks that end
    with their cluster are not given the time."""
    wandb: Any = sys.modules.get("wandb")
    if getattr(wandb, "run", None) is not None:
        try:
            wandb.finish(exit_code=code)
        except Exception:
            traceback.print_exc()


def _code(status: object) -> int:
    """The exit status of a program that `sys.exit` was called in."""
    return status if isinstance(status, int) else int(status is not None)


def end_fork(status: object) -> None:
    """End a process that a script or a cell forked, where that ends: it is no second rank."""
    code = _code(status)
    try:
        if code != status and status is not None:
            print(status, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also where it has closed them, or is interrupted
        os._exit(code)


NO_FILE = "there is no file {path} on {host} (in {folder})"
