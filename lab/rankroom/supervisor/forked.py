"""Ranks that are forked on this machine: the fork server as its owner sees it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankroom.system import python_command

FORK_S = 20.0  # for a fork, on a busy machine


class ForkedProcess:
    """A forked rank; it has the names of subprocess.Popen that are used here."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()
        self._server = server

    def end(self, code: int) -> None:
        """It has ended."""
        if self.returncode is None:
            self.returncode = code
            self.ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.returncode is None:  # reaped by the server only: the id is not another's yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """A process that has imported `modules`, and forks ranks.

    `wake()` is called when a rank has ended; `notes` are for the client that starts the cluster.
    """

    def __init__(
        self,
        modules: Sequence[str],
        env: dict[str, str],
        cwd: str,
        log: Path,
        wake: Callable[[], None],
    ) -> None:
        self.imports: list[dict[str, Any]] = []
        self.unsafe = ""
        self.notes: list[str] = []
        self._wake = wake
        self._orders = itertools.count(1)
        self._forked: dict[int, int | str] = {}  # process ids by order, or why there is none
        self._processes: dict[int, ForkedProcess] = {}
        self._codes: dict[int, int] = {}  # of processes that ended before they were known here
        self._news = threading.Condition()
        self._is_ready = False
        self.is_over = False
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            argv = python_command.command(
                "rankroom.agent.fork_server", str(theirs.fileno()), *modules
            )
            self.process = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._socket = ours
        threading.Thread(target=self._read, name="rankroom-forks", daemon=True).start()

    def note(self, text: str) -> None:
        """Keep a line for the client that starts the cluster."""
        self.notes.append(text)

    def wait_ready(self, seconds: float) -> bool:
        """Wait until it can fork; False if it cannot, or not in time."""
        with self._news:
            self._news.wait_for(lambda: self._is_ready or self.is_over, seconds)
            return self._is_ready and not self.is_over

    def fork(self, argv: list[str], env: dict[str, str], cwd: str, log: Path) -> ForkedProcess:
        """Fork a rank. Raises OSError if it cannot be, or the fork server is gone."""
        number = next(self._orders)
        order = {"order": number, "argv": argv, "env": env, "cwd": cwd, "log": str(log)}
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        with self._news:
            self._news.wait_for(lambda: number in self._forked or self.is_over, FORK_S)
            if number not in self._forked:
                raise OSError("the process that forks ranks does not answer")
            pid = self._forked.pop(number)
            if isinstance(pid, str):
                raise OSError(pid)
            made = self._processes[pid] = ForkedProcess(self, pid)
            if pid in self._codes:
                made.end(self._codes.pop(pid))
        return made

    def close(self) -> None:
        """Have it end, with all its ranks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._take(json.loads(line))
        with self._news:
            self.is_over = True
            for process in self._processes.values():
                process.end(-signal.SIGKILL)  # as it happens to them when their parent is gone
            self._news.notify_all()
        self._wake()

    def _take(self, said: dict[str, Any]) -> None:
        with self._news:
            if "order" in said:
                self._forked[said["order"]] = said.get("pid") or said["refused"]
            elif "ended" in said:
                if process := self._processes.pop(said["ended"], None):
                    process.end(said["code"])
                else:
                    self._codes[said["ended"]] = said["code"]
            elif "ready" in said:
                self._is_ready = True
            elif "failed" in said:
                self.note(f"{said['module']} could not be preloaded: {said['failed']}")
            elif "module" in said:
                self.imports.append(said)
                if said["unsafe"] and not self.unsafe:
                    self.unsafe = said["module"]
                    self.note(UNSAFE.format(module=said["module"], why=said["unsafe"]))
            self._news.notify_all()
        if "ended" in said:
            self._wake()


UNSAFE = "ranks are started one by one: with {module} imported, a process is not forked, as {why}"
