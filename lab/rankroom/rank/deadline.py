"""How much time is left until the job ends, for code that saves something before that.

A rank asks its cluster's supervisor; any other process of a Slurm job asks Slurm. A thread repeats
the request, as a job's time limit may be changed; it is started at the first use.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

from rankroom.errors import UsageError
from rankroom.reporting.spans import recorder
from rankroom.rpc.client import ask
from rankroom.scheduler import job_end

LIMIT_POLL_INTERVAL_S = 10.0  # between two requests to a supervisor
REPLY_TIMEOUT_S = 5.0
_CALL_SIGNAL = signal.SIGRTMIN + 6  # makes the main thread make the calls that are due


def time_left() -> float | None:
    """Return the seconds until the job's time limit, None if there is none. Costs next to nothing.

    Ranks may see slightly different times: if all of them must act alike, let one decide and
    broadcast its decision.
    """
    return _limit.left()


def on_time_limit(call: Callable[[], object], before: float = 120.0) -> None:
    """Call `call()` when `before` seconds of the job's time are left, to save a checkpoint.

    It is called in the main thread, between two steps of whatever runs there, so it may use the
    same variables. It must not call collectives, as the other ranks are elsewhere at that moment.
    An exception that it raises is printed, and the cell continues. A function replaces an earlier
    one of the same name, so that a cell can be run again. Methods of several objects are all
    called, until a later cell registers a method of the same name. Without a time limit, `call` is
    never called. Raises UsageError outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("on_time_limit can only be used in the main thread, as in a cell")
    signal.signal(_CALL_SIGNAL, lambda number, frame: _limit.make_calls())
    signal.siginterrupt(_CALL_SIGNAL, False)
    _limit.follow()
    _limit.add(Call(call, before))


class Call:
    """A function to call, and whether it was called for the current time limit."""

    def __init__(self, call: Callable[[], object], before: float) -> None:
        self.call = call
        self.before = before
        self.made = False
        self._run = recorder.began
        name = getattr(call, "__qualname__", "<lambda>")
        self._name: object = call if "<lambda>" in name else (getattr(call, "__module__", ""), name)

    def replaces(self, other: Call) -> bool:
        """Return whether this call replaces `other`, which must have the same name. A method of
        another object is replaced only if another run registered it."""
        mine, others = (getattr(each.call, "__self__", None) for each in (self, other))
        return self._name == other._name and (mine is others or self._run != other._run)

    def due(self, left: float | None) -> bool:
        """Return whether to call now; after a limit was extended, the call becomes due again."""
        near = left is not None and left <= self.before
        if not near:
            self.made = False
        return near and not self.made


class Limit:
    """The time limit of this process's job; `until` is in epoch seconds, 0 while there is none."""

    def __init__(self) -> None:
        self.until = 0.0
        self.calls: list[Call] = []
        self._pid = 0  # of the process whose thread polls the limit; a forked child has none
        self._lock = threading.Lock()

    def left(self) -> float | None:
        """Return the seconds until the limit as last reported, None if there is none."""
        self.follow()
        return max(0.0, self.until - time.time()) if self.until else None

    def add(self, call: Call) -> None:
        """Add a call, in place of those that it replaces."""
        self.calls = [*(each for each in self.calls if not call.replaces(each)), call]

    def follow(self) -> None:
        """Request the limit now and then repeatedly in a thread, unless that is running."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid != os.getpid() and _ends():
                if self._pid:
                    self.calls = []  # the parent process makes them
                self._pid = 0  # until the thread runs: this may be interrupted, or fail
                self._ask()
                threading.Thread(target=self._follow, name="rankroom-deadline", daemon=True).start()
                self._pid = os.getpid()

    def make_calls(self) -> None:
        """Make the calls that are due; runs in the main thread."""
        left = self.left()
        for each in self.calls:
            if each.due(left):
                each.made = True
                try:
                    each.call()
                except Exception:
                    traceback.print_exc()

    def _follow(self) -> None:
        pause = LIMIT_POLL_INTERVAL_S if _on_rank() else job_end.MAX_POLL_INTERVAL_S
        asked = time.monotonic()
        while True:
            left = self.until - time.time() if self.until else pause
            until = [left - each.before for each in self.calls if not each.made]
            time.sleep(max(0.1, min([1.0, *(each for each in until if each > 0)])))
            if any(each.due(self.left()) for each in self.calls):
                self._have_called()
            if time.monotonic() - asked > pause:
                self._ask()
                asked = time.monotonic()

    def _have_called(self) -> None:
        if callable(signal.getsignal(_CALL_SIGNAL)):
            signal.pthread_kill(threading.main_thread().ident or 0, _CALL_SIGNAL)
            time.sleep(1.0)  # Python runs the handler once C code has returned
        else:  # a library has replaced our handler, as Lightning does after training
            self.make_calls()

    def _ask(self) -> None:
        if not _on_rank():
            if said := job_end.query_job(os.environ.get("SLURM_JOB_ID", "")):
                self.until = job_end.end_time(said)
            return
        # If the supervisor does not reply, the last known limit stays.
        with contextlib.suppress(OSError):
            rpc, key = os.environ["RANKROOM_RPC"], os.environ["RANKROOM_RPC_KEY"]
            self.until = float(ask(rpc, key, REPLY_TIMEOUT_S, do="until")["until"])


def _on_rank() -> bool:
    return "RANKROOM_RPC" in os.environ


def _ends() -> bool:
    """Return whether there may be a time limit: on a rank, or in a Slurm job."""
    return _on_rank() or "SLURM_JOB_ID" in os.environ


_limit = Limit()
