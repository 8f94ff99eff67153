"""What a rank uses, with its children."""

from __future__ import annotations

import os
import signal

from rankroom.reporting import samples

MB = 1 << 20


def test_what_children_were_forked_with_counts_once():
    held = bytearray(os.urandom(64 * MB))
    alone = samples.resident(os.getpid())
    children = []
    try:
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
        together = samples.resident(os.getpid())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert alone > 64 * MB and len(held) == 64 * MB
    assert together - alone < 48 * MB
