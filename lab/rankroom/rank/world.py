"""Who this rank is, who the others are, and which of them the present cell runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankroom.rank import rendezvous


class SubsetError(Exception):
    """A collective of all ranks was called in a cell that only some of them run.

    Not a RuntimeError: Horovod turns those into its own internal error.
    """


@dataclass
class World:
    """This rank among the others. `epoch` counts how often the ranks were wired anew."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: str = "cpu"
    desk: str = ""
    secret: str = ""
    epoch: int = 0
    present: tuple[int, ...] = ()
    _inits: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> World:
        """The world as the process that started this rank described it."""
        size = int(env["RANKROOM_SIZE"])
        return cls(
            rank=int(env["RANKROOM_RANK"]),
            size=size,
            local_rank=int(env["LOCAL_RANK"]),
            device=env["RANKROOM_DEVICE"],
            desk=env.get("RANKROOM_DESK", ""),
            secret=env.get("RANKROOM_SECRET", ""),
            present=tuple(range(size)),
        )

    @property
    def partial(self) -> bool:
        """True while a cell runs on some of the ranks only."""
        return len(self.present) < self.size

    def rewire(self, epoch: int) -> None:
        """The ranks were wired anew (one restarted, say): count initialisations from zero."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._inits.clear()

    def refuse(self, what: str, remedy: str) -> SubsetError:
        """The error for a collective in a cell on some ranks: it would wait for the others."""
        here = ", ".join(map(str, self.present))
        absent = ", ".join(str(r) for r in range(self.size) if r not in self.present)
        return SubsetError(
            f"{what} would wait for ever for rank {absent}: this cell runs on rank {here} only. "
            f"{remedy}"
        )

    def meet(self, library: str, again: bool = False) -> str:
        """Open the store for the next initialisation of `library` and point Horovod at it.

        Every rank initialises a library equally often, so their counts name the same store.
        `again` re-opens the latest one (process sets added later use it). Returns the store's name.
        """
        if not again:
            self._inits[library] = self._inits.get(library, 0) + 1
        key = f"{library}/{self.epoch}/{self._inits.get(library, 1)}"
        answer = rendezvous.ask(self.desk, self.secret, do="meet", key=key)
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = self.desk.rpartition(":")[0]
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(answer["port"])
        return key

    def met(self, key: str) -> None:
        """This rank has initialised; the store closes when all have."""
        rendezvous.ask(self.desk, self.secret, do="met", key=key, rank=self.rank, size=self.size)
