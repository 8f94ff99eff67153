"""Imports once what ranks need, and forks them when it is asked to.

`python -m rankroom.agent.fork_server FD MODULE…` is started by the ranks' supervisor; they
exchange lines of JSON over the socket FD. It has one thread, and touches no ZeroMQ context and no
device, so that its children are as good as processes that were started by themselves. They end
when it ends; it ends, with all that they have started, when the other end of its socket is closed.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from rankroom.rank import engine
from rankroom.rank.world import World
from rankroom.system import process_tree

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
END_S = 1.0  # for orphaned ranks to end
LONGEST = 1 << 20  # bytes that are read at once


def main(argv: list[str]) -> None:
    """Import the modules that `argv` names, and serve until the owner hangs up."""
    owner = socket.socket(fileno=int(argv[1]))
    # As the first rank has it; what differs in the others is set when they are forked.
    engine.prepared = engine.prepare()
    for name in argv[2:]:
        tell(owner, **preloaded(name))
    gc.collect()
    gc.freeze()  # the pages of what is here now stay shared with all ranks
    tell(owner, ready=True)
    serve(owner)


def preloaded(name: str) -> dict[str, Any]:
    """Import a module; what is to be said of it, as whether a process with it may be forked."""
    begun = time.time_ns() // 1000
    try:
        importlib.import_module(name)
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        return {"module": name, "failed": f"{type(error).__name__}: {why}"}
    took = time.time_ns() // 1000 - begun
    return {"module": name, "begun": begun, "took": took, "unsafe": _why_unsafe()}


def _why_unsafe() -> str:
    """Why this process should not be forked any more; empty if it may be."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "it has opened a GPU"
    if threading.active_count() > 1:
        names = ", ".join(each.name for each in threading.enumerate()[1:])
        return f"it runs threads of Python ({names})"
    return ""


def serve(owner: socket.socket) -> None:
    """Fork, and tell how children ended."""
    waking, woken = socket.socketpair()
    waking.setblocking(False)
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(owner, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        got = b""
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    reap(owner)
                    continue
                data = owner.recv(LONGEST)
                if not data:
                    end_all()
                    return
                *lines, got = (got + data).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    try:
                        pid = os.fork()
                    except OSError as error:  # the limit of processes, say; its ranks live on
                        tell(owner, order=order["order"], refused=str(error))
                        continue
                    if pid == 0:
                        selector.close()
                        for each in (owner, waking, woken):
                            each.close()
                        become_rank(order)
                    tell(owner, order=order["order"], pid=pid)


def reap(owner: socket.socket) -> None:
    """Tell of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        tell(owner, ended=pid, code=os.waitstatus_to_exitcode(status))


def end_all() -> None:
    """End all children, and theirs: the supervisor is gone."""
    process_tree.end(process_tree.descendants([os.getpid()]), END_S)


def tell(owner: socket.socket, **words: Any) -> None:
    owner.sendall(json.dumps(words).encode() + b"\n")


def become_rank(order: dict[str, Any]) -> None:
    """In the child: be a rank as if this process had been started as one; does not return."""
    code = 1
    try:
        os.setsid()
        parent = os.getppid()
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NAME, b"rank " + order["env"]["RANKROOM_RANK"].encode(), 0, 0, 0)
        if parent != os.getppid():
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _open_streams(Path(order["log"]))
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        sys.argv = ["rankroom-rank", *order["argv"]]
        assert engine.prepared is not None
        world, _ = engine.prepared
        vars(world).update(vars(World.from_environment(os.environ)))
        _differ()
        faulthandler.enable()
        engine.main()
        atexit._run_exitfuncs()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
    """Have what each process draws for itself be different, and threads as many as it may use."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if (torch := sys.modules.get("torch")) and threads.isdigit():
        torch.set_num_threads(int(threads))
    psutil.Process()  # its own, not its parent's


if __name__ == "__main__":
    main(sys.argv)
