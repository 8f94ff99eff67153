"""The memory that a rank and its children use."""

from __future__ import annotations

import subprocess
import sys

MB = 1 << 20


FORKS = """
import os, signal
from rankroom.reporting import samples
held = bytearray(os.urandom(64 << 20))
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
print(alone, together, len(held))
"""


def test_memory_shared_with_forked_children_counts_once():
    # In a process of its own: how much a fork of this one copies depends on earlier tests.
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    alone, together, held = map(int, done.stdout.split())
    assert alone > held == 64 * MB
    assert together - alone < 48 * MB
