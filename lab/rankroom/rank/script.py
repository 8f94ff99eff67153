"""Run a user's script on a rank as `python script.py` would."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import functools
import os
import runpy
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.rank.shell import RankShell, leave

# Modules of executors: the table of their threads, and the flag that tells these the program ends.
EXECUTOR_INTERNALS = {
    "concurrent.futures.thread": ("_threads_queues", "_shutdown"),
    "concurrent.futures.process": ("_threads_wakeups", "_global_shutdown"),
    "loky.process_executor": ("_threads_wakeups", "_global_shutdown"),
    "joblib.externals.loky.process_executor": ("_threads_wakeups", "_global_shutdown"),
}

MAX_ERROR_CHARS = 500  # characters of an error's message that are shown before its traceback


class ScriptExit(Exception):
    """The script has ended with a nonzero exit status, or with a message in its place."""


def run(path: str, arguments: Sequence[str], is_module: bool = False) -> None:
    """Run the script at `path` as `__main__`, or the module of that name as `python -m` does.

    Raises what it raises, and ScriptExit for a nonzero exit status.
    """
    __tracebackhide__ = True  # IPython omits this frame from the traceback
    first = Path.cwd() if is_module else Path(path).resolve().parent
    if not is_module and not Path(path).is_file():
        raise ScriptExit(NO_FILE.format(path=path, folder=first.cwd(), host=socket.gethostname()))
    before, process = (sys.argv, sys.path[:]), os.getpid()
    remaining = RemainingWork()
    # IPython removes these while a cell runs.
    names = {name: leave for name in ("exit", "quit") if not hasattr(builtins, name)}
    vars(builtins).update(names)
    sys.argv = [path, *arguments]
    torch_adapter.is_in_script = True
    sys.path.insert(0, str(first))
    status: object = 0
    try:
        # They exit last one first, in the order in which Python ends a program.
        with (
            signal_handlers(first), own_event_loop(), own_main(),
            followed_by(remaining.wait_for_processes), exit_functions(first),
            followed_by(remaining.wait_for_threads),
        ):  # fmt: skip
            try:
                if is_module:
                    runpy.run_module(path, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                status = end.code
                if os.getpid() == process and status not in SUCCESS_STATUSES:
                    remaining.tell_failing(f"exit status {status}")
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if os.getpid() == process:
                    remaining.tell_failing("".join(traceback.format_exception_only(error)).strip())
                raise
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
    if status not in SUCCESS_STATUSES:
        raise ScriptExit(status) from None


@contextlib.contextmanager
def own_main() -> Iterator[None]:
    """Keep `__main__` the script's until its threads and exit functions are over, too, as these
    pickle its classes. runpy would restore ours before that."""
    before, original = sys.modules["__main__"], runpy._TempModule

    class Kept(original):  # type: ignore[misc,valid-type]
        def __enter__(self) -> Any:
            vars(runpy)["_TempModule"] = original  # the script may use runpy itself
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            pass

    vars(runpy)["_TempModule"] = Kept
    try:
        yield
    finally:
        vars(runpy)["_TempModule"] = original
        sys.modules["__main__"] = before


@contextlib.contextmanager
def own_event_loop() -> Iterator[None]:
    """Hide this thread's running event loop, which runs the cell: a program expects none to be
    running, and calls `asyncio.run`, or lets `asyncio.get_event_loop()` run what it awaits."""
    loop, process = asyncio._get_running_loop(), os.getpid()
    task = asyncio.current_task(loop) if loop is not None else None
    if loop is None or task is None:
        yield
        return
    asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    try:
        yield
    finally:
        if os.getpid() == process:  # a forked one would close its parent's loop as well
            with contextlib.suppress(Exception):  # a daemon thread may still run it
                own.close()
        asyncio._set_running_loop(loop)
        asyncio.tasks._enter_task(loop, task)
        asyncio.set_event_loop(loop)  # `asyncio.run` leaves none set


@contextlib.contextmanager
def signal_handlers(folder: Path) -> Iterator[None]:
    """Restore the signal handlers that a script in `folder` has changed: one that requeues its job
    would take the end of the rank for the end of the job."""
    process = os.getpid()
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        if os.getpid() == process and threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                now = signal.getsignal(number)
                if now is handler or handler is None or _stays(number, now, folder):
                    continue
                signal.signal(number, handler)


def _stays(number: int, handler: Any, folder: Path) -> bool:
    """Return whether to keep a handler, as a library sets it only once in a process: ours for the
    job's end, and PyTorch's, which reports that a worker of a DataLoader has died."""
    is_ours = str(getattr(handler, "__module__", "")).startswith("rankroom.")
    is_of_library = callable(handler) and not _is_below(folder, handler)
    return is_ours or (number == signal.SIGCHLD and is_of_library)


@contextlib.contextmanager
def followed_by(wait: Callable[[], None]) -> Iterator[None]:
    """Call `wait` after the block, even if that raises; but not after an interrupt, which is to end
    everything, and not in a process that the block has forked."""
    process = os.getpid()
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        if os.getpid() == process:
            # An interrupt ends the wait; the user should see the first error.
            with contextlib.suppress(BaseException):
                wait()
        raise
    if os.getpid() == process:
        wait()


@contextlib.contextmanager
def exit_functions(folder: Path) -> Iterator[None]:
    """Call at the end, last one first, what a script in `folder` has registered with atexit, and
    those of its functions that a library has registered.

    Functions of the libraries themselves are left for the end of the process: the next run needs
    the libraries intact.
    """
    own: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
    process, before = os.getpid(), (atexit.register, atexit.unregister)

    def register(function: Any, /, *args: Any, **named: Any) -> Any:
        # Code that has kept this function from an earlier script registers for the process.
        caller = sys._getframe(1).f_globals.get("__name__")
        is_own = _is_below(folder, function) or _is_own(folder, caller)
        if atexit.register is not register or not is_own:
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
    """Return whether a function belongs to the script in `folder`, or to one of its own modules."""
    while isinstance(function, functools.partial):
        function = function.func
    return _is_own(folder, getattr(function, "__module__", None))


def _is_own(folder: Path, name: Any) -> bool:
    """Return whether a module is the script, or lies below its `folder` and is not installed."""
    if name == "__main__":
        return True
    file = Path(getattr(sys.modules.get(name or ""), "__file__", None) or "")
    is_installed = {"site-packages", "dist-packages"} & {*file.parts}
    is_pythons = file.is_relative_to(sysconfig.get_path("stdlib"))
    return file.is_relative_to(folder) and not is_installed and not is_pythons


class RemainingWork:
    """What a script has started but not ended, and Python waits for at the end of a program: work
    of executors (a checkpoint, perhaps), threads and processes that are not daemons.

    Create it before the script runs: what exists then belongs to the rank.
    """

    def __init__(self) -> None:
        self._threads_before = set(threading.enumerate())
        self._children_before = set(_children())
        self._finalizers_before = set(_finalizers())

    def tell_failing(self, why: str) -> None:
        """Report the failure, so that other ranks are released, and tell the user, before the wait
        for threads and processes."""
        if RankShell.initialized():
            RankShell.instance().tell_raised()
        names = [each.name for each in [*self._threads(), *self._processes()]]
        if names:
            why = why if len(why) <= MAX_ERROR_CHARS else f"{why[:MAX_ERROR_CHARS]}…"
            print(
                WAITING_AFTER_FAILURE.format(why=why, names=", ".join(names)),
                file=sys.stderr,
                flush=True,
            )

    def wait_for_threads(self) -> None:
        """Wait for threads, including those that they start meanwhile."""
        while new := self._threads():
            _end_executors(new)  # their threads do not end as long as more work may come
            for thread in new:
                thread.join()

    def wait_for_processes(self) -> None:
        """End what `multiprocessing` ends with a program, such as a Manager; wait for processes."""
        finalizers = _finalizers()
        new = [each for each in [*finalizers] if each not in self._finalizers_before]
        for key in sorted(
            (each for each in new if each[0] is not None and each[0] >= 0), reverse=True
        ):
            if finalizer := finalizers.get(key):  # unless another one has removed it
                try:
                    finalizer()
                except Exception:
                    traceback.print_exc()
        for child in self._processes():
            child.join()

    def _threads(self) -> list[threading.Thread]:
        known = {*self._threads_before, threading.current_thread()}
        return [each for each in threading.enumerate() if each not in known and not each.daemon]

    def _processes(self) -> list[Any]:
        new = [each for each in _children() if each not in self._children_before]
        return [each for each in new if not each.daemon]


def _children() -> list[Any]:
    processes: Any = sys.modules.get("multiprocessing")
    return processes.active_children() if processes else []


def _finalizers() -> dict[Any, Any]:
    """Return what `multiprocessing` calls at a program's end, by priority (None: not called) and
    number."""
    return getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {})


def _end_executors(threads: Collection[threading.Thread]) -> None:
    """Let the executors of these threads finish their work and end, as Python does at exit."""
    for name, (kept, flag) in EXECUTOR_INTERNALS.items():
        module = vars(sys.modules[name]) if name in sys.modules else {}
        before = module.get(kept, {})
        own = {each: how for each, how in [*before.items()] if each in threads}
        if own and (end := module.get("_python_exit")):
            module[kept] = own
            try:
                end()
            finally:
                module.update({kept: before, flag: False})


def end_tracking(code: int) -> None:
    """Send and finish a run of Weights & Biases, as at the end of a program: ranks that end with
    their cluster are given no time for that."""
    wandb: Any = sys.modules.get("wandb")
    if getattr(wandb, "run", None) is not None:
        try:
            wandb.finish(exit_code=code)
        except Exception:
            traceback.print_exc()


def _code(status: object) -> int:
    """Return the exit status of a program that calls `sys.exit(status)`."""
    return status if isinstance(status, int) else int(status is not None)


def end_fork(status: object) -> None:
    """End a process forked by a script or a cell at the end of that, as it is not a second rank."""
    code = _code(status)
    try:
        if code != status and status is not None:
            print(status, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # even if the script has closed them, or an interrupt comes
        os._exit(code)


SUCCESS_STATUSES = (None, 0, False)  # arguments of `sys.exit` that mean success
WAITING_AFTER_FAILURE = (
    "{why}: waiting for threads and processes that the script started ({names}); interrupt to stop "
    "waiting"
)
NO_FILE = "there is no file {path} on {host} (current folder: {folder})"
