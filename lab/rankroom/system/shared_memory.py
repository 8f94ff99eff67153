"""The message for a /dev/shm that is too small; data loaders pass batches through it.

A process that writes beyond its end is killed by SIGBUS. Containers give it 64 MB unless they are
configured otherwise.
"""

from __future__ import annotations

import os

FOLDER = "/dev/shm"
# Parts of PyTorch's errors: for a loader killed that way, and for one that noticed in time.
SIGNS = ("Bus error", "shared memory(shm)", "out of shared memory")


def is_too_small(error: str) -> bool:
    """Return whether an error message says that there was not enough shared memory."""
    return any(sign in error for sign in SIGNS)


def words() -> str:
    """Return how much there is here, and the remedy; empty if the size cannot be read."""
    try:
        about = os.statvfs(FOLDER)
    except OSError:
        return ""
    has, free = (each * about.f_frsize >> 20 for each in (about.f_blocks, about.f_bavail))
    return SMALL.format(folder=FOLDER, has=has, free=free)


SMALL = (
    "{folder} has {has} MiB, of which {free} MiB are free; if shared memory ran out, enlarge it "
    "(`--shm-size` of a container), or load data with fewer workers or smaller batches"
)
