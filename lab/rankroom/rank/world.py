"""This rank, the other ranks, and which of them the current cell runs on."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankroom.rank.waiting import Waiting
from rankroom.rpc.client import ask

PREDEFINED_NAMES = (
    "rank",
    "size",
    "local_rank",
    "device",
    "span",
)  # names that a cell finds on every rank
WAIT_NOTICE_DELAY_S = 5.0  # a rank that waits longer than this for others says so


class SubsetError(Exception):
    """A collective of all ranks was called in a cell that only some of them run.

    Not a RuntimeError: Horovod turns those into its own internal error.
    """

    # TensorFlow's AutoGraph would wrap the message in the stack of a function it rewrites.
    ag_pass_through = True


class ReleasedError(RuntimeError):
    """This rank waited for others that will not join, as one of them has failed."""


class RegroupedError(RuntimeError):
    """This rank waited for others, one of which has died: they are to meet again."""


@dataclass
class World:
    """This rank among the others. `epoch` counts how often the ranks got a new wiring.

    `size` is less than `whole`, the number of all ranks, during a cell that runs on some of them as
    a world of their own.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: str = "cpu"
    rpc: str = ""  # the address of the supervisor; below, its key
    rpc_key: str = ""
    epoch: int = 0
    present: tuple[int, ...] = ()
    run: str = ""
    whole: int = 1
    is_copy: bool = False  # this process was forked from the rank: it is not part of its world
    # In an elastic run: how often ranks have died; how this one has, until it has received the
    # others' state; and the first rank that has the state.
    meeting: int = 0
    behind: str = ""
    first_with_state: int = 0
    elastic: bool = False  # within an elastic run, with its state
    _waits: str = ""
    _released: bool = False
    _peers_left: bool = False  # other ranks are known to have left the cell
    has_met_again: bool = False  # all ranks have met since they were released in this cell
    _rounds: dict[str, int] = field(default_factory=dict)
    _earlier: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        self.whole = max(self.whole, self.size)

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> World:
        """Create the world as the process that started this rank has described it in `env`."""
        size = int(env["RANKROOM_SIZE"])
        return cls(
            rank=int(env["RANKROOM_RANK"]),
            size=size,
            local_rank=int(env["LOCAL_RANK"]),
            device=env["RANKROOM_DEVICE"],
            rpc=env.get("RANKROOM_RPC", ""),
            rpc_key=env.get("RANKROOM_RPC_KEY", ""),
            present=tuple(range(size)),
        )

    @property
    def partial(self) -> bool:
        """True while a cell runs on some of the ranks only, except in threads of earlier cells.

        What an earlier cell has started in a thread, such as an asynchronous checkpoint, continues
        on the other ranks as well.
        """
        is_whole = len(self.present) >= self.size
        return not is_whole and threading.current_thread() not in self._earlier

    @property
    def alone(self) -> bool:
        """True if there is no other rank to agree with."""
        return self.whole == 1 or not self.rpc

    def report_out_of_step(self) -> None:
        """Make the next cell on all ranks start with a comparison of their states."""
        with contextlib.suppress(OSError):
            self._ask(do="out of step")

    def note_elastic(self, inside: bool) -> None:
        """Report whether this rank is in an elastic run, in which ranks that die are waited for."""
        self.elastic = inside
        if not self.alone:
            with contextlib.suppress(OSError):
                self._ask(do="elastic", run=self.run, inside=inside)

    def regroup(self, meeting: int) -> None:
        """Note a new meeting, and make this rank's main thread meet the others again if it waits;
        called from another thread."""
        self.meeting = meeting
        if self._waits:
            self._ask(do="leave", topic=self._waits)

    def begin(
        self,
        run: str,
        ranks: tuple[int, ...],
        epoch: int,
        own: bool = False,
        meeting: int = 0,
        back: str = "",
    ) -> None:
        """Prepare for a cell on `ranks`; `epoch` has changed if the ranks got a new wiring.

        With `own`, these ranks (0, 1, …) are the whole world of the cell. `meeting` and `back` are
        for a rank that has died in the run and was restarted.
        """
        self.run, self.present, self.epoch = run, ranks, epoch
        self.meeting, self.behind, self.elastic, self.first_with_state = meeting, back, False, 0
        self.size = len(ranks) if own else self.whole
        self._released = self._peers_left = self.has_met_again = False
        self._earlier.clear()
        if len(ranks) < self.size:
            # "Dummy" threads are those of C++, such as autograd's, which work for every cell.
            named = (each for each in threading.enumerate() if not each.name.startswith("Dummy-"))
            self._earlier.update(each for each in named if each is not threading.main_thread())

    def end(self) -> None:
        """Make the world whole again after a cell, until the next one."""
        self.size = self.whole
        self.present = tuple(range(self.whole))
        self._released = self._peers_left = False

    def leave(self) -> None:
        """Make this process, forked from the rank by a cell, a world of its own."""
        self.is_copy = True
        self.size = self.whole = 1
        self.present, self.rpc = (0,), ""

    def refuse(self, what: str, remedy: str) -> SubsetError:
        """Return the error for a collective in a cell on some ranks: it would wait for the rest."""
        absent = [rank for rank in range(self.size) if rank not in self.present]
        return SubsetError(
            f"{what} would wait forever for {named(absent)}: this cell runs on "
            f"{named(self.present)} only. {remedy}"
        )

    def gather(self, topic: str, value: Any, meeting: int | None = None) -> list[Any]:
        """Return every rank's value for `topic`, in the order of ranks: a collective of our own.

        An interrupt ends the wait, and so does `release` from another thread (ReleasedError), or
        `regroup` (RegroupedError). With a `meeting`, `check_meeting` is called first.
        """
        with Waiting(topic):
            now = self.meeting
            if meeting is not None:
                self.check_meeting(topic, meeting)
            return self._gather(f"{topic}/{self._scope(now)}", value, now)

    def check_meeting(self, topic: str, meeting: int) -> None:
        """Raise RegroupedError if a rank has died since this meeting, ReleasedError if others have
        left the cell."""
        if self.meeting != meeting:
            raise RegroupedError(PEER_DIED.format(what=topic))
        if self._peers_left:
            raise ReleasedError(PEER_FAILED.format(what=topic))

    def _gather(self, topic: str, value: Any, meeting: int) -> list[Any]:
        number: int | None = None
        told = time.monotonic() + WAIT_NOTICE_DELAY_S
        self._waits = topic
        try:
            while True:
                answer = self._ask(
                    do="gather", topic=topic, round=number, size=self.size, value=value
                )
                number = int(answer["round"])
                if answer["complete"] and not self._peers_left:
                    self.has_met_again |= self._released
                    self._released = False
                    self._rounds[topic] = number
                    values: list[Any] = answer["values"]
                    return values
                missing = sorted(set(range(self.size)) - {self.rank, *answer["ranks"]})
                if self.meeting != meeting:
                    raise RegroupedError(PEER_DIED.format(what=_words(topic)))
                if self._released or self._peers_left:
                    words = PEER_FAILED_FIRST if missing else PEER_FAILED
                    raise ReleasedError(words.format(what=_words(topic), ranks=named(missing)))
                if time.monotonic() > told:
                    told = float("inf")
                    about = {"rank": self.rank, "ranks": named(missing), "what": _words(topic)}
                    print(WAITING_FOR.format(**about), file=sys.stderr)
        except BaseException:
            self._ask(do="leave", topic=topic)
            raise
        finally:
            self._waits = ""

    def release(self, peers_left: bool) -> None:
        """Release this rank's main thread if it waits in `gather`; called from another thread.

        If some ranks have left the cell (`peers_left`), every later `gather` in it fails, too, even
        one that all ranks had joined.
        """
        self._released, self._peers_left, self.has_met_again = True, peers_left, False
        if self._waits:
            self._ask(do="leave", topic=self._waits)

    def round(self, topic: str) -> int:
        """Return how often all ranks have gathered at `topic`: the same number on every rank."""
        return self._rounds.get(f"{topic}/{self._scope(self.meeting)}", 0)

    def _scope(self, meeting: int) -> str:
        """Return the scope in which these ranks, and no others, meet: a smaller world counts its
        own rounds."""
        if meeting:
            return f"{self.epoch}/{self.run}/{meeting}"
        return f"{self.epoch}" if self.size == self.whole else f"{self.epoch}/{self.run}"

    def open_store(self, library: str, meeting: int) -> str:
        """Open the store for the latest gathered initialization of `library`, and point Horovod
        at it. Process sets that are added later use it, too. Returns the store's name."""
        scope = self._scope(meeting)
        key = f"{library}/{scope}/{self._rounds.get(f'{library}/{scope}', 0)}"
        answer = self._ask(do="meet", key=key)
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = answer["address"]
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(answer["port"])
        return key

    def report_initialized(self, key: str) -> None:
        """Report that this rank has initialized; the store closes when all have."""
        self._ask(do="met", key=key, size=self.size)

    def _ask(self, **question: Any) -> dict[str, Any]:
        return ask(self.rpc, self.rpc_key, rank=self.rank, **question)


def restore_environment(variables: Mapping[str, str | None]) -> None:
    """Set environment variables to these earlier values; None means not set."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _words(topic: str) -> str:
    return topic.partition("/")[0]


def named(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 1, 3`: code of a rank does not import the package `text`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


WAITING_FOR = "rank {rank} waits in {what} for {ranks}"
PEER_FAILED_FIRST = "{what} was released: {ranks} failed before reaching the same call"
PEER_FAILED = "{what} was released: another rank has failed"
PEER_DIED = "{what} was released: another rank has died, and is waited for until it is restarted"
