"""What keeper and desk say to each other: one line of JSON, and after it as many bytes as it says.

A desk's first line is its greeting: what a login shell prints before that is passed over.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

Head = dict[str, Any]
GREETING = "rankroom"  # a key of the first line, and of no other's
LONGEST_HEAD = 64 << 20  # a cell's source is in one


def frame(head: Head, body: bytes = b"") -> bytes:
    """A message as it is sent."""
    about = {**head, "bytes": len(body)} if body else head
    return json.dumps(about, separators=(",", ":")).encode() + b"\n" + body


def read(stream: BinaryIO) -> tuple[Head, bytes] | None:
    """The next message; None at the end, also where it comes in the middle of one.

    Raises ValueError for what is no message.
    """
    line = stream.readline(LONGEST_HEAD)
    if not line.endswith(b"\n"):
        return None
    head = parse(line)
    body = stream.read(head.get("bytes", 0))
    return (head, body) if len(body) == head.get("bytes", 0) else None


def parse(line: bytes) -> Head:
    """The head of a message. Raises ValueError for what is none."""
    head = json.loads(line)
    size = head.get("bytes", 0) if isinstance(head, dict) else -1
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"no message: {line[:200]!r}")
    return dict(head)


def greeting(line: bytes) -> Head | None:
    """The greeting in a line, if it is one."""
    try:
        head = parse(line)
    except ValueError:
        return None
    return head if GREETING in head else None
