"""ssh's questions (a password, a one-time code, a host's key), passed from the process that needs
the answer to one that can get it, such as a dialog in JupyterLab.

The question is in a file that only its user can read. The answer goes through a named pipe, from
memory to memory: it is never written to a disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import select
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rankroom import config
from rankroom.errors import UsageError
from rankroom.system.files import read_all, write_atomically

MAX_ANSWER_BYTES = select.PIPE_BUF - 64  # bytes; goes through the pipe in one piece
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Question:
    """A question that ssh asks when connecting to `host`; `secret` if the answer must be hidden."""

    id: str
    host: str
    text: str
    secret: bool
    asked: float  # epoch s
    machine: str = ""  # the machine that asks; several may share a home


def folder() -> Path:
    return config.home() / "questions"


def pending() -> list[Question]:
    """Return the open questions of this machine, the oldest first."""
    found = []
    for question in read_all(folder(), Question):
        if question.machine != socket.gethostname():
            continue
        if _waits(question.id):
            found.append(question)
        else:
            _forget(question.id)  # the process that asked was killed
    return sorted(found, key=lambda question: question.asked)


def answer(id: str, text: str) -> None:
    """Answer a question. Raises UsageError when no process waits for the answer any longer."""
    _tell(id, {"answer": text})


def refuse(id: str) -> None:
    """Refuse to answer: the process that asked gives up at once. Raises UsageError as `answer`."""
    _tell(id, {"refused": True})


def ask(host: str, text: str, secret: bool, seconds: float) -> str | None:
    """Ask, and wait for the answer; return None if it is refused. Raises TimeoutError if none
    arrives within `seconds`."""
    question = Question(secrets.token_hex(8), host, text, secret, time.time(), socket.gethostname())
    config.make_private(folder())
    pipe = _pipe(question.id)
    os.mkfifo(pipe, 0o600)
    # Open for writing, too: else this end sees EOF once `_waits` has opened and closed the pipe.
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        write_atomically(folder() / f"{question.id}.json", json.dumps(asdict(question)))
        said = _heard(descriptor, seconds)
    finally:
        os.close(descriptor)
        _forget(question.id)
    return None if said.get("refused") else str(said.get("answer", ""))


def _heard(descriptor: int, seconds: float) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        said += os.read(descriptor, select.PIPE_BUF)
    return dict(json.loads(said.splitlines()[0]))


def _tell(id: str, what: dict[str, object]) -> None:
    line = json.dumps(what).encode() + b"\n"
    if len(line) > MAX_ANSWER_BYTES:
        raise UsageError(TOO_LONG.format(most=MAX_ANSWER_BYTES // 2))
    try:
        descriptor = _opened(id)
    except OSError:
        raise UsageError(ANSWER_NOT_AWAITED) from None
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _waits(id: str) -> bool:
    """Return whether a process waits at the question's pipe, or that cannot be told now."""
    try:
        os.close(_opened(id))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.ENOENT, None)
    return True


def _opened(id: str) -> int:
    """Open the pipe to the process that asks; OSError if there is none. `id` is untrusted."""
    if not _ID.fullmatch(id):
        raise FileNotFoundError(id)
    return os.open(_pipe(id), os.O_WRONLY | os.O_NONBLOCK)


def _forget(id: str) -> None:
    for file in (folder() / f"{id}.json", _pipe(id)):
        file.unlink(missing_ok=True)


def _pipe(id: str) -> Path:
    return folder() / f"{id}.pipe"


ANSWER_NOT_AWAITED = "this question is no longer open; ssh asks again if it still needs an answer"
TOO_LONG = "an answer may have at most {most} characters"
