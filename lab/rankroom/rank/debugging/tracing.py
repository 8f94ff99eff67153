"""Control of pydevd in this process: which threads it traces, and how one of them stops.

Up to Python 3.11 it traces single threads with sys.settrace, since 3.12 all of them with
sys.monitoring. pydevd comes with debugpy, which is imported only when `start` is first called.
"""

from __future__ import annotations

import functools
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Packages whose code runs a cell, and is not the user's.
KERNEL_PACKAGES = {
    "IPython", "asyncio", "debugpy", "ipykernel", "ipyparallel", "rankroom", "tornado",
    "traitlets", "zmq",
}  # fmt: skip


def start(connection: socket.socket) -> None:
    """Start pydevd at one end of a pair of sockets; no thread is traced yet."""
    import pydevd

    exclude_other_threads()
    connect, pydevd.start_client = pydevd.start_client, lambda host, port: connection
    try:
        pydevd.settrace(
            host="this process", port=0, protocol="dap", suspend=False, notify_stdin=False,
            trace_only_current_thread=True, wait_for_ready_to_run=False,
        )  # fmt: skip
    finally:
        pydevd.start_client = connect
        stop_tracing()
    pydb = pydevd.get_global_debugger()
    pydb.do_wait_suspend = functools.partial(_interruptible, pydb.do_wait_suspend)


def stop() -> None:
    """Stop pydevd."""
    import pydevd

    pydevd.stoptrace()


def trace_this_thread() -> None:
    """Make this thread stop at breakpoints."""
    import pydevd

    if (pydb := pydevd.get_global_debugger()) is not None:
        if _uses_monitoring():
            pydb.enable_tracing(pydb.trace_dispatch, apply_to_all_threads=True)
        pydb.enable_tracing(pydb.trace_dispatch)


def stop_tracing(all_threads: bool = True) -> None:
    """Stop tracing this thread, or all where they are traced together."""
    import pydevd_tracing
    from _pydevd_sys_monitoring import pydevd_sys_monitoring

    if _uses_monitoring():
        pydevd_sys_monitoring.stop_monitoring(all_threads=all_threads)
    else:
        pydevd_tracing.SetTrace(None)  # sys.settrace is replaced by pydevd's, which warns


def stop_in(frame: FrameType) -> None:
    """Stop this thread in `frame`, until a request continues it."""
    import pydevd
    from _pydevd_bundle.pydevd_comm_constants import CMD_SET_BREAK

    if (pydb := pydevd.get_global_debugger()) is not None:
        thread = threading.current_thread()
        stop_tracing(all_threads=False)  # else it would stop in pydevd's own code
        pydb.set_suspend(thread, CMD_SET_BREAK, suspend_requested=True)
        pydb.do_wait_suspend(thread, frame, "line", None)
        pydb.enable_tracing(pydb.trace_dispatch)


def exclude_other_threads() -> None:
    """Make pydevd trace none of the current threads but the main one."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]


def files_to_step_over() -> list[str]:
    """Return the files in which no step ends: the kernel's, and those of imported modules of
    Python's own, which the kernel uses between two statements of a cell."""
    stdlib = sysconfig.get_path("stdlib")
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_pythons = file.startswith(stdlib) and "site-packages" not in file
        if file and (is_pythons or name.partition(".")[0] in KERNEL_PACKAGES):
            found.append(file)
    return found


def _interruptible(wait: Callable[..., None], *about: Any, **more: Any) -> None:
    """Wait in pydevd. After an interrupt, stop tracing, as pydevd would stop again in the code that
    handles it, and let the cell end."""
    from _pydevd_bundle.pydevd_thread_lifecycle import resume_threads

    try:
        wait(*about, **more)
    except BaseException:
        stop_tracing(all_threads=False)
        resume_threads("*")
        raise


def _uses_monitoring() -> bool:
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    return bool(PYDEVD_USE_SYS_MONITORING)
