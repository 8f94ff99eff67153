"""What to say of /dev/shm, through which data loaders pass batches, where it is too small.

Who writes beyond its end is ended by SIGBUS; containers give it 64 MB unless they are told more.
"""

from __future__ import annotations

import os

FOLDER = "/dev/shm"
# Of PyTorch's errors for a loader that was ended so, and for one that saw it coming.
SIGNS = ("Bus error", "shared memory(shm)", "out of shared memory")


def is_too_small(error: str) -> bool:
    """Whether an error's words say that there was not enough of it."""
    return any(sign in error for sign in SIGNS)


def words() -> str:
    """How much there is here, and what to do; empty where that cannot be told."""
    try:
        about = os.statvfs(FOLDER)
    except OSError:
        return ""
    has, free = (each * about.f_frsize >> 20 for each in (about.f_blocks, about.f_bavail))
    return SMALL.format(folder=FOLDER, has=has, free=free)


SMALL = (
    "{folder} has {has} MiB, {free} MiB of them free: if that is what it lacked, make it larger "
    "(`--shm-size` of a container), or load with fewer workers or smaller batches"
)
