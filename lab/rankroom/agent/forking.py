"""What a process does before it forks ranks, and what its child does to become one."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import psutil

from rankroom.rank.world import World
from rankroom.system import python_command

NO_PRELOAD = "none"  # instead of modules: ranks are programs of their own
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
GPU = "/dev/nvidia-uvm"  # open in a process that has a CUDA context


def prepare() -> None:
    """Import the rank's engine, and install its hooks for frameworks that are imported later."""
    from rankroom.rank import engine

    # For the first rank; what differs in the others is set when they are forked.
    engine.prepared = engine.prepare()


def imports(name: str) -> str:
    """Import a module; return why that failed, if it did."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        why = str(error).strip().partition("\n")[0]
        return f"{type(error).__name__}: {why}"
    return ""


def why_unsafe() -> str:
    """Return why this process must no longer be forked; empty if it may be."""
    torch = sys.modules.get("torch")
    if GPU in _open_files() or (torch is not None and torch.cuda.is_initialized()):
        return "it has opened a GPU"
    if threading.active_count() > 1:
        names = ", ".join(each.name for each in threading.enumerate()[1:])
        return f"it runs threads of Python ({names})"
    return ""


def _open_files() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(fd.readlink()))
        except OSError:
            continue
    return found


def become_rank(
    agent: int, rank: int, env: dict[str, str], options: list[str], log: Path, forked: bool
) -> NoReturn:
    """In a child of the process `agent`: run as a rank in this process if `forked`, or else execute
    the rank's own program."""
    code = 1
    try:
        os.setsid()
        if sys.platform == "linux":
            libc = ctypes.CDLL(None)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.prctl(PR_SET_NAME, f"rank {rank}".encode(), 0, 0, 0)
        if os.getppid() != agent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the rank can write its stacks
        _open_streams(log)
        os.environ.update(env)
        if not forked:
            words = python_command.command("rankroom.rank.engine", *options)
            os.execv(words[0], words)
        sys.argv = ["rankroom-rank", *options]
        _be(World.from_environment(os.environ))
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            _flush_files()
        finally:  # whatever fails: this process must not go on as a second agent
            os._exit(code)


def _be(own: World) -> None:
    """Run the engine as the rank whose world is `own`."""
    from rankroom.rank import engine

    assert engine.prepared is not None
    world, _ = engine.prepared
    vars(world).update(vars(own))
    _differ()
    faulthandler.enable()
    try:
        engine.main()
    finally:  # also after an error: the signal to end stops its event loop in the middle
        atexit._run_exitfuncs()


def _flush_files() -> None:
    """Write what Python buffers of open files, as an interpreter does that is finalized."""
    # Text is flushed into buffers, so it comes first.
    for kind in (io.TextIOBase, io.BufferedIOBase):
        for each in (sys.stdout, sys.stderr, *gc.get_objects()):
            with contextlib.suppress(BaseException):  # a pipe without a reader, say
                # By its type: what an object says of its class may load a module.
                if issubclass(type(each), kind) and not each.closed and each.writable():
                    each.flush()


def _open_streams(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for fd, own in ((null, 0), (file, 1), (file, 2)):
        os.dup2(fd, own)
    os.close(null)
    os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def _differ() -> None:
    """Seed this process's own random number generators, and set how many threads it may use."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # a GPU's generator is seeded on its first use
        if threads.isdigit():
            torch.set_num_threads(int(threads))
    psutil.Process()  # its own, not its parent's
