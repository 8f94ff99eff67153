"""Horovod on a rank: initialized whenever the user's code calls hvd.init(), however often.

Horovod for torch and Horovod for TensorFlow are two libraries, each with its own state. Each is
initialized together on all ranks, shut down to release blocked calls, and initialized again before
the next cell on all ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rankroom.rank import sockets
from rankroom.rank.frameworks.horovod import horovod_calls, horovod_elastic, horovod_spans
from rankroom.rank.frameworks.horovod import process_sets as horovod_sets
from rankroom.rank.import_hooks import when_imported
from rankroom.rank.world import World

INIT_ATTEMPTS = 3  # to initialize: a connection may break while it is made
JOINT_SHUTDOWN_TIMEOUT_S = 0.5  # for a shutdown in which all ranks take part: it takes milliseconds
SHUTDOWN_POLL_INTERVAL_S = 0.05  # poll interval: whether a shutdown is over, or must be cut short
RELEASE_TIMEOUT_S = 2.0  # a shutdown may be blocked by a stuck rank; a release must not be

# In Horovod's error if a connection could not be made.
_CONNECTION_FAILED_TEXT = "initialization failed"
JOIN_EDIT = "join-reset"  # Rankroom's edit that lets Horovod start again after a failed join

# The state of a library that was imported, but never initialized.
IMPORTED_ONLY_STATE = {
    "on": False, "started": False, "released": False, "spoilt": False, "gave_up": "",
}  # fmt: skip

_STALL_CHECK_VARIABLES = {f"HOROVOD_STALL_{each}_TIME_SECONDS" for each in ("CHECK", "SHUTDOWN")}

_libraries: dict[str, Library] = {}


def environment(
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    cross_rank: int,
    cross_size: int,
    host: str,
    interface: str,
) -> dict[str, str]:
    """Return the variables that Horovod reads at initialization without a launcher of its own."""
    # Dynamic process sets cost an exchange with the other ranks: nothing if there are no others.
    alone = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"} if size == 1 else {}
    return alone | {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(local_size),
        "HOROVOD_CROSS_RANK": str(cross_rank),
        "HOROVOD_CROSS_SIZE": str(cross_size),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        # Makes hvd.start_timeline() possible later; read once, at initialization.
        "HOROVOD_TIMELINE": "DYNAMIC",
    }


def install(world: World) -> None:
    """Prepare for the user's `import horovod.…`; nothing is imported now."""
    when_imported("horovod.common.basics", lambda module: _wrap_basics(module, world))
    when_imported("horovod.common.process_sets", horovod_sets.wrap)
    horovod_elastic.install(world, functools.partial(_let_outdated_go, world))
    if world.size > 1:
        for name, compiled in (("torch", "mpi_lib"), ("tensorflow", "MPI_LIB")):
            when_imported(
                f"horovod.{name}.mpi_ops",
                functools.partial(horovod_calls.wrap, compiled=compiled, world=world),
            )
        when_imported("horovod.torch.optimizer", horovod_calls.track_optimizers)


def release() -> list[str]:
    """Release every blocked Horovod call, each of which then raises; called from any thread.

    Returns the libraries that were shut down, or whose initialization was aborted.
    """
    connecting = [each for each in list(_libraries.values()) if each.connecting.break_off()]
    on = [library for library in list(_libraries.values()) if library.basics.is_initialized()]
    threads = [threading.Thread(target=each.shut_down, daemon=True) for each in on]
    for each, thread in zip(on, threads, strict=True):
        each.released = True
        thread.start()
    for thread in threads:
        thread.join(RELEASE_TIMEOUT_S)
    return [f"horovod.{library.name}" for library in dict.fromkeys([*connecting, *on])]


def regroup(world: World, meeting: int) -> list[str]:
    """Prepare to meet the other ranks again after a rank has died in an elastic run.

    A rank that does not have the state yet releases nothing now, as its cell may still call
    Horovod, but when it enters `hvd.elastic.run`. Returns the libraries that were released.
    """
    # In this order: what is set up in the new meeting must not be released.
    released = release() if world.elastic else []
    world.regroup(meeting)
    for library in list(_libraries.values()):
        library.leave_outdated()
    return released


def _let_outdated_go(world: World) -> None:
    """Release libraries that were started with a rank that has died since in this elastic run."""
    meeting = world.run, world.meeting
    if world.meeting and any(each.meeting != meeting for each in _libraries.values()):
        release()


def state() -> dict[str, Any]:
    """Return the state of each imported library, compared by ranks after a cell that failed."""
    unused = {name: IMPORTED_ONLY_STATE for name in ("torch", "tensorflow") if _imported(name)}
    return unused | {name: library.state() for name, library in _libraries.items()}


def gave_up() -> bool:
    """Return whether a library on this rank has shut down by itself since it was started."""
    return any(library.gave_up for library in list(_libraries.values()))


def settle(states: list[dict[str, Any]]) -> None:
    """Initialize again the libraries that the ranks' `states` show as released or out of step."""
    horovod_calls.reset_optimizers()
    # Every rank prints the cause: the others only report that a peer closed its connections.
    words = {each["gave_up"] for mine in states for each in mine.values()} - {""}
    if words:
        print(GAVE_UP.format(words=min(words, key=_is_consequence)), file=sys.stderr)
    for name in sorted({name for each in states for name in each}):
        mine = [each.get(name) for each in states]
        same = all(each == mine[0] for each in mine)
        basics = _imported(name)
        if basics is None or (same and not (mine[0] and mine[0]["released"])):
            continue
        if name in _libraries:
            _libraries[name].shut_down()
            _libraries[name].released = False
        known = [each for each in mine if each]
        # A process that has never started it replaces one that had.
        replaced = len({each["started"] for each in known}) > 1
        if any(each["spoilt"] for each in known):
            print(JOIN_FAILED, file=sys.stderr)
        elif all(mine) and (replaced or any(_was_on(each) for each in known)):
            basics.init()


def _was_on(state: dict[str, Any]) -> bool:
    """Return whether this library was in use on that rank, other than in a smaller world only."""
    return bool((state["on"] or state["released"]) and not state.get("over"))


def set_aside() -> Any:
    """Begin a cell with a world and process sets of its own. Returns those of the whole world."""
    return horovod_sets.set_aside()


def put_back(kept: Any) -> None:
    """Return to the whole world, with the process sets that were set aside."""
    horovod_sets.put_back(kept)


def _imported(name: str) -> Any:
    """Return the HorovodBasics of `name`, or None if that library is not imported."""
    if name in _libraries:
        return _libraries[name].basics
    return getattr(sys.modules.get(f"horovod.{name}.mpi_ops"), "_basics", None)


class Library:
    """One Horovod library in this process: `torch` or `tensorflow`."""

    def __init__(
        self, basics: Any, initialise: Callable[..., Any], end: Callable[..., Any], world: World
    ) -> None:
        self.name = _name(basics)
        self.basics = basics
        self.released = False
        self.started = False
        self.meeting = "", 0  # the run and the meeting in which it was started
        self._made_for = 0  # the size of the world in which it was started
        self._started_whole = False
        self._epoch = 0
        self._original_init = initialise
        self._original_shutdown = end
        self._ending: threading.Thread | None = None
        self._world = world
        self._lock = threading.Lock()
        self._sockets: list[sockets.Socket] = []
        # Horovod's Gloo raises an error if a socket on which it waits for a peer is closed.
        self.connecting = sockets.Connecting(listening=True)
        self._connects = 0  # the meeting whose ranks last began to connect
        self.spans = horovod_spans.watch(self.name, basics, world)

    def init(self, comm: Any, process_sets: Any) -> None:
        """Run hvd.init() on all ranks together, or do nothing if all of them have."""
        if (
            _STALL_CHECK_VARIABLES & os.environ.keys()
        ):  # also if set in a cell: the user wants Horovod's own check
            os.environ.pop("HOROVOD_STALL_CHECK_DISABLE", None)
        world = self._world
        wanted = horovod_sets.listed(process_sets)
        if world.alone:
            before = self.basics.is_initialized()
            self._original_init(self.basics, comm, process_sets)
            if not before:
                self.spans.started()
            return
        if world.partial:
            if not self.basics.is_initialized():
                raise world.refuse("hvd.init()", "Run hvd.init() in a cell on all ranks first.")
        else:
            self._init_with_all(comm, wanted)
        horovod_sets.register(self.name, self.basics, wanted, world.size)

    def _init_with_all(self, comm: Any, wanted: list[Any]) -> None:
        """Start on all ranks; retry if one of them dies meanwhile and is waited for."""
        while True:
            meeting = self._world.meeting
            try:
                if not self._agreed_on(meeting) or not self._has(wanted):
                    self._start(comm, wanted, meeting)
                return
            except Exception:
                if self._world.meeting == meeting:
                    raise

    def add_process_set(self, ranks: list[int]) -> int | None:
        """Return the number of the set of `ranks`, made now if it is new; called on all ranks."""
        world = self._world
        if world.partial:
            raise world.refuse("hvd.add_process_set()", "Make it in a cell on all ranks.")
        asked = world.gather(f"hvd.add_process_set() of horovod.{self.name}", sorted(ranks))
        if any(each != asked[0] for each in asked):
            raise ValueError(PROCESS_SETS_DIFFER.format(asked=", ".join(map(str, asked))))
        if horovod_sets.find(self.name, ranks, world.size) is None:
            meeting = world.meeting
            self._agreed_on(meeting)
            self._start(None, [], meeting, also=[ranks])
        return horovod_sets.find(self.name, ranks, world.size)

    def _agreed_on(self, meeting: int) -> bool:
        """Exchange states with the other ranks; return whether Horovod is initialized on all."""
        behind = bool(self._world.behind)
        mine = {
            "on": self.basics.is_initialized(), "spoilt": self.spoilt, "behind": behind,
            "sets": horovod_sets.known(self.name),
        }  # fmt: skip
        ranks = self._world.gather(self.topic, mine, meeting)
        horovod_sets.agree(self.name, [each["sets"] for each in ranks])
        have = [rank for rank, each in enumerate(ranks) if not each["behind"]]
        self._world.first_with_state = have[0] if have else 0
        if any(each["spoilt"] for each in ranks):
            raise RuntimeError(JOIN_FAILED)
        return all(each["on"] for each in ranks)

    def _has(self, wanted: list[Any]) -> bool:
        size = self._world.size
        return all(horovod_sets.find(self.name, each.ranks, size) is not None for each in wanted)

    def _start(
        self,
        comm: Any,
        wanted: list[Any],
        meeting: int,
        also: list[list[int]] | None = None,
        tries: int = INIT_ATTEMPTS,
    ) -> None:
        self.shut_down()
        horovod_calls.forget_handles(self.name)
        horovod_sets.focus(self.basics)
        ranks = [each.ranks for each in wanted] + (also or [])
        sets = horovod_sets.to_start_with(self.name, ranks, self._world.size)
        key = self._world.open_store(self.topic, meeting)
        failed = None
        try:
            self._sockets.clear()
            check = functools.partial(self._connect, meeting)
            with self.connecting.noting(self._sockets, check):
                self._original_init(self.basics, comm, sets)
        except ValueError as error:
            failed = error
        finally:
            self._world.report_initialized(key)
        try:
            said = self._world.gather(self.topic, {"failed": str(failed or "")}, meeting)
        except BaseException:
            self.released = True  # it may be initialized, with broken connections
            raise
        if causes := [each["failed"] for each in said if each.get("failed")]:
            if tries > 1 and all(_CONNECTION_FAILED_TEXT in each for each in causes):
                self._start(comm, wanted, meeting, also, tries - 1)
                return
            raise failed or RuntimeError(
                INIT_FAILED_ELSEWHERE.format(library=self.name, cause=causes[0])
            )
        self.released, self.started, self._made_for = False, True, self._world.size
        self._started_whole |= self._made_for == self._world.whole
        self._epoch, self.meeting = self._world.epoch, (self._world.run, meeting)
        horovod_calls.begin(self.name)
        self.spans.started()

    def _connect(self, meeting: int) -> None:
        """Note that the ranks of a meeting are about to connect; raise if it is outdated."""
        self._world.check_meeting(self.topic, meeting)
        self._connects = meeting

    def leave_outdated(self) -> None:
        """Abort an initialization with a rank that has died since; called from another thread.

        Within it, Horovod also waits for ranks that are alive, but have left it.
        """
        self.connecting.break_off(lambda: self._connects != self._world.meeting)

    @property
    def spoilt(self) -> bool:
        """True if this library cannot start again in this process."""
        return horovod_calls.spoilt(self.name) and JOIN_EDIT not in _edits(self.basics)

    @property
    def gave_up(self) -> str:
        """Why this library shut down by itself, in its own words; "" if it did not.

        Also "" if it was released, or if a rank was restarted in the meantime.
        """
        asked = getattr(self.basics.MPI_LIB_CTYPES, "horovod_gave_up", None)
        wired_again = self.released or self._epoch != self._world.epoch
        if asked is None or wired_again or not self.basics.is_initialized():
            return ""
        asked.restype = ctypes.c_char_p
        return str(asked().decode("utf-8", "replace"))

    @property
    def topic(self) -> str:
        return f"hvd.init() of horovod.{self.name}"

    def shut_down(self, patience: float = JOINT_SHUTDOWN_TIMEOUT_S) -> None:
        """Shut down together with the other ranks, or alone after `patience` seconds.

        After a death, a rank may be waiting in a ring for a peer that has noticed it and left. The
        user's own hvd.shutdown() waits without limit, until it is released. Horovod's shutdown must
        not be called twice at the same time: both calls would wait for its thread to end, and only
        one would be notified.
        """
        with self._lock:
            if self._ending is None or not self._ending.is_alive():
                if not self.basics.is_initialized():
                    return
                self._ending = threading.Thread(
                    target=self._original_shutdown, args=[self.basics], daemon=True
                )
                try:
                    self._ending.start()
                except RuntimeError:  # this process is about to exit, and can start no threads
                    self._original_shutdown(self.basics)
                    return
            begun = time.monotonic()
            while self._ending.is_alive():
                self._ending.join(SHUTDOWN_POLL_INTERVAL_S)
                if time.monotonic() - begun > (
                    JOINT_SHUTDOWN_TIMEOUT_S if self.released else patience
                ):
                    sockets.break_off(self._sockets)
                    self._ending.join()

    def state(self) -> dict[str, Any]:
        whole = self._world.size == self._world.whole
        on = bool(self.basics.is_initialized())
        return {
            "on": on,
            "started": self._started_whole if whole else self.started,
            # A library started for another world is as useless as a released one.
            "released": self.released
            or bool(self.gave_up)
            or (on and self._made_for != self._world.size),
            "gave_up": self.gave_up,
            "over": whole and not self._started_whole,
            "spoilt": self.spoilt,
            "round": self._world.round(self.topic),
            "calls": horovod_calls.count(self.name),
        }


def _edits(basics: Any) -> list[str]:
    """Return Rankroom's edits to the installed Horovod; none if Rankroom did not build it."""
    marker = Path(basics.MPI_LIB_CTYPES._name).parent.parent / "rankroom.json"
    with contextlib.suppress(OSError, ValueError):
        return list(json.loads(marker.read_text())["edits"])
    return []


def _name(basics: Any) -> str:
    return Path(basics.MPI_LIB_CTYPES._name).parent.name


def _users(original: Any, recording: bool) -> Any:
    """Wrap hvd.start_timeline (`recording`) or stop_timeline to notice the user's own timeline."""

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        library = _libraries.get(_name(self))
        result = original(self, *args, **kwargs)
        if library is not None:  # not after a failure, such as a file that cannot be written
            library.spans.users(recording)
        return result

    return wrapped


def _wrap_basics(module: ModuleType, world: World) -> None:
    basics_class: Any = module.HorovodBasics
    original: Callable[..., Any] = basics_class.init
    end: Callable[..., Any] = basics_class.shutdown

    @functools.wraps(original)
    def init(self: Any, comm: Any = None, process_sets: Any = None) -> None:
        library = _libraries.setdefault(_name(self), Library(self, original, end, world))
        library.init(comm, process_sets)

    @functools.wraps(end)
    def shutdown(self: Any) -> None:
        if library := _libraries.get(_name(self)):
            library.shut_down(float("inf"))

    basics_class.init, basics_class.shutdown = init, shutdown
    for name, recording in (("start_timeline", True), ("stop_timeline", False)):
        if hasattr(basics_class, name):
            setattr(basics_class, name, _users(getattr(basics_class, name), recording))
    if world.alone or not hasattr(basics_class, "_add_process_set_impl"):
        return

    def add(self: Any, ranks: Any) -> Any:
        if not self.is_initialized():
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return _libraries[_name(self)].add_process_set(list(ranks))

    def remove(self: Any, process_set_id: int) -> Any:
        # Horovod keeps the set, as traced graphs contain the numbers of other sets.
        horovod_sets.forget(_name(self), process_set_id)
        return process_set_id

    basics_class._add_process_set_impl = add
    basics_class._remove_process_set_impl = remove


def _is_consequence(words: str) -> bool:
    return "by peer" in words


PROCESS_SETS_DIFFER = (
    "hvd.add_process_set() was given different ranks on different ranks ({asked}): every rank "
    "must make every set, including those it is not in"
)
JOIN_FAILED = (
    "Horovod cannot be initialized again in these processes, because a cell failed while a rank "
    "was in hvd.join(): run `%cluster restart`"
)
GAVE_UP = (
    "Horovod shut down by itself between two cells and is initialized again for this one: {words} "
    "(to give it more time, set HOROVOD_GLOO_TIMEOUT_SECONDS on the ranks before hvd.init())"
)
INIT_FAILED_ELSEWHERE = "hvd.init() of horovod.{library} failed on another rank: {cause}"
