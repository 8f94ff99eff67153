"""How much memory ranks use, and what that says about one that was killed.

The kernel's out-of-memory killer leaves no message in the process that it kills: there is only a
signal that others send, too, and a counter in the control group.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from rankroom.system.control_groups import free_memory, groups
from rankroom.system.network import here

HIGH_MEMORY_FRACTION = 0.7  # of the limit: from there on, lack of memory is a likely cause
# For a process that the kernel killed to be gone, which much memory delays.
KILL_ATTRIBUTION_S = 10.0
MIN_RANK_BYTES = 24 << 20  # memory of its own that a rank needs before it does anything
UNLIMITED_BYTES = 1 << 60  # cgroup v1 reports about this if there is no limit


class Memory:
    """The memory of a node's ranks, sampled by their agent, which is in the same control group."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._folders = groups("memory", root)
        self.limit = limit(self._folders)
        self._kills = kills(self._folders)
        self._killed = float("-inf")  # when the last kill was noticed
        self._last: dict[int, int] = {}
        self._together = 0  # memory of all ranks when last sampled

    def sample(self, ranks: Mapping[int, int]) -> None:
        """Note how much memory the ranks use now; `ranks` are their process ids."""
        self._note_kills()
        for rank, pid in ranks.items():
            with contextlib.suppress(psutil.Error, OSError):
                # A process that has just been killed has none left: what counts is what it had.
                if has := psutil.Process(pid).memory_info().rss:
                    self._last[rank] = has
        self._together = sum(self._last.values())

    def refuses(self, ranks: int) -> str:
        """Return why so many ranks cannot be started; empty if there is memory for them."""
        left = free_memory(self._folders)
        if ranks * MIN_RANK_BYTES <= left:
            return ""
        who = "1 rank does" if ranks == 1 else f"{ranks} ranks do"
        return NO_ROOM.format(who=who, each=size(MIN_RANK_BYTES), node=here(), left=size(left))

    def words(self, rank: int) -> str:
        """Return a note on a rank that was ended by SIGKILL; empty if it was never sampled."""
        self._note_kills()
        last = self._last.pop(rank, None)
        if last is None:
            return ""
        said = f"it last used {size(last)} of memory, the limit is {size(self.limit)}"
        if time.monotonic() - self._killed < KILL_ATTRIBUTION_S:
            return f"{said}: out of memory"
        return (
            f"{said} (out of memory?)"
            if self._together > HIGH_MEMORY_FRACTION * self.limit
            else said
        )

    def _note_kills(self) -> None:
        """Note when the kernel has killed a process: any rank that ends now, or none of them."""
        counted, self._kills = self._kills, kills(self._folders)
        if self._kills > counted:
            self._killed = time.monotonic()


def limit(folders: list[Path]) -> int:
    """Return how many bytes all ranks may use: the lowest limit of the groups, or all there is."""
    limits = [int(psutil.virtual_memory().total)]
    for folder in folders:
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(each for each in limits if each < UNLIMITED_BYTES)


def kills(folders: list[Path]) -> int:
    """Return how often a process of this group was killed for lack of memory; 0 if not counted."""
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (folder / name).read_text().splitlines():
                    word, _, count = line.partition(" ")
                    if word == "oom_kill":
                        return int(count)
    return 0


def size(count: int) -> str:
    """Return a number of bytes as text: 3.1 GiB."""
    if count < 1 << 30:
        return f"{count / (1 << 20):.0f} MiB"
    return f"{count / (1 << 30):.1f} GiB"


NO_ROOM = (
    "{who} not fit on {node}: each needs {each} of memory before it does anything, and "
    "{left} are free"
)
