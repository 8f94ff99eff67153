"""A real ipykernel in a process of its own, and the cost of a request to it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client import KernelManager

from table import NotMeasured

MARK = "RANKROOM_BENCH"  # in the environment of every process that a benchmark starts
DELIMITER = b"<IDS|MSG>"
QUIET_S = 0.05  # after idle, to wait for late messages of the cell


def processes(folder: Path) -> list[psutil.Process]:
    """Return the processes that kernels in `folder` or below have started and that still run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mark = process.environ().get(MARK)
            ended = process.status() == psutil.STATUS_ZOMBIE
            if mark and Path(mark).is_relative_to(folder) and not ended:
                found.append(process)
    return found


@dataclass
class Message:
    """One IOPub message: seconds after the request, its type, and its content as sent."""

    at: float
    type: str
    raw: bytes

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """Roughly what a user would see of it: stream text, or the plain representation."""
        content = self.content
        return content.get("text") or content.get("data", {}).get("text/plain", "")


@dataclass
class Answer:
    """The result of a request. `seconds` is from request to idle, `size` bytes of IOPub frames."""

    seconds: float = 0.0
    size: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def error(self) -> str | None:
        """Name and text of the error that the cell ended with, if any."""
        for message in self.messages:
            if message.type == "error":
                content = message.content
                return f"{content['ename']}: {content['evalue']}"
        return None

    def ok(self) -> Answer:
        """Return this answer. Raises NotMeasured if the cell failed."""
        if self.error:
            raise NotMeasured(f"the cell failed: {self.error}")
        return self

    @property
    def text(self) -> str:
        """All that was printed."""
        return "".join(m.text for m in self.messages if m.type == "stream")


class Kernel:
    """A kernel whose IOPub bytes are all counted. Everything it writes is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.home = folder / "home"
        env = dict(os.environ) | {
            MARK: str(folder),
            "RANKROOM_HOME": str(self.home),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        }
        connection = str(folder / "kernel.json")
        self.manager = KernelManager(kernel_name="python3", connection_file=connection)
        self.manager.start_kernel(env=env, cwd=str(folder))
        self.client = self.manager.blocking_client()
        self._context = zmq.Context()
        self._iopub = self._context.socket(zmq.SUB)
        # A flood must arrive complete: with the default limits, messages would be dropped.
        self._iopub.RCVHWM = 0
        self._iopub.LINGER = 0
        self._iopub.connect(f"tcp://{self.client.ip}:{self.client.iopub_port}")
        self._iopub.subscribe(b"")
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=60)
            self.run("pass").ok()
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> psutil.Process:
        """The kernel's process."""
        return psutil.Process(self.manager.provisioner.process.pid)

    def run(self, code: str, timeout: float = 120.0) -> Answer:
        """Execute `code` and wait for idle. Raises NotMeasured after `timeout`."""
        answer = Answer()
        for _ in self.follow(code, answer, timeout):
            pass
        return answer

    def follow(self, code: str, answer: Answer, timeout: float = 120.0) -> Iterator[Message]:
        """Like `run`, but yield each message as soon as it arrives; fills `answer`."""
        self._drain(0)
        begun = time.perf_counter()
        request = self.client.execute(code, store_history=True, allow_stdin=False)
        while True:
            left = begun + timeout - time.perf_counter()
            if left <= 0 or not self._iopub.poll(int(left * 1000) + 1):
                raise NotMeasured(f"no idle within {timeout:.0f} s of: {code[:60]!r}")
            for frames in self._waiting():
                message, parent = self._read(frames, begun)
                answer.size += sum(len(frame) for frame in frames)
                if parent != request:
                    continue
                answer.messages.append(message)
                yield message
                if message.type == "status" and message.content["execution_state"] == "idle":
                    answer.seconds = message.at
            if answer.seconds:
                break
        answer.size += self._drain(QUIET_S)
        self.client.get_shell_msg(timeout=10)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the kernel, passed as JSON."""
        answer = self.run(f"import json as _json; print(_json.dumps({expression}))").ok()
        return json.loads(answer.text)

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self._iopub.close()
        self._context.term()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def _waiting(self) -> Iterator[list[bytes]]:
        while True:
            try:
                yield self._iopub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def _drain(self, seconds: float) -> int:
        size = 0
        while self._iopub.poll(int(seconds * 1000)):
            size += sum(len(frame) for frames in self._waiting() for frame in frames)
        return size

    @staticmethod
    def _read(frames: list[bytes], begun: float) -> tuple[Message, str | None]:
        at = time.perf_counter() - begun
        first = frames.index(DELIMITER)
        header, parent, content = (frames[first + i] for i in (2, 3, 5))
        kind = json.loads(header)["msg_type"]
        return Message(at, kind, content), json.loads(parent).get("msg_id")
