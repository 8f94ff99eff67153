"""How much time there is until the job ends, for code that wants to save something before.

On a rank its cluster's supervisor knows, in any other process of a Slurm job Slurm does. A thread
asks again, as the time of a job may be changed; it exists only where somebody wants to know.
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

ASK_S = 10.0  # between two questions to a supervisor
PATIENCE_S = 5.0
_SIGNAL = signal.SIGRTMIN + 6  # what has a call made by the main thread


def time_left() -> float | None:
    """Seconds until the job's time is over; None where nothing ends. Costs next to nothing.

    Ranks may see it a moment apart: where all of them are to act alike, let one decide and
    broadcast what it decided.
    """
    return _limit.left()


def on_time_limit(call: Callable[[], object], before: float = 120.0) -> None:
    """Have `call()` called when `before` seconds are left of the job's time, to save a checkpoint.

    It is called in the main thread, between two steps of whatever runs there, and so may use the
    same variables; collectives do not belong in it, as other ranks are elsewhere just then. What it
    raises is printed, and the cell goes on. A function of the same name takes an earlier one's
    place, so that a cell can be run again; methods of several objects are all called, until another
    cell names one of them again. Where nothing ends, it is never called. Raises UsageError outside
    of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("on_time_limit can only be used in the main thread, as in a cell")
    signal.signal(_SIGNAL, lambda number, frame: _limit.make_calls())
    signal.siginterrupt(_SIGNAL, False)
    _limit.follow()
    _limit.add(Call(call, before))


class Call:
    """What is to be called, and whether it has been for the limit as it is now."""

    def __init__(self, call: Callable[[], object], before: float) -> None:
        self.call = call
        self.before = before
        self.made = False
        self._run = recorder.began
        name = getattr(call, "__qualname__", "<lambda>")
        self._name: object = call if "<lambda>" in name else (getattr(call, "__module__", ""), name)

    def replaces(self, other: Call) -> bool:
        """Whether this is the same again: by its name, and a method of the same object, unless that
        was of an earlier cell."""
        mine, others = (getattr(each.call, "__self__", None) for each in (self, other))
        return self._name == other._name and (mine is others or self._run != other._run)

    def due(self, left: float | None) -> bool:
        """Whether to call now; a limit that was moved away counts again."""
        near = left is not None and left <= self.before
        if not near:
            self.made = False
        return near and not self.made


class Limit:
    """The time limit of this process's job; `until` is 0 while there is none."""

    def __init__(self) -> None:
        self.until = 0.0
        self.calls: list[Call] = []
        self._pid = 0  # whose thread follows; a forked child has none
        self._lock = threading.Lock()

    def left(self) -> float | None:
        """Seconds until then, as last heard."""
        self.follow()
        return max(0.0, self.until - time.time()) if self.until else None

    def add(self, call: Call) -> None:
        """Have it called, in the place of what it replaces."""
        self.calls = [*(each for each in self.calls if not call.replaces(each)), call]

    def follow(self) -> None:
        """Ask now, and then again and again in a thread."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid != os.getpid() and _ends():
                if self._pid:
                    self.calls = []  # the parent makes them
                self._pid = os.getpid()
                self._ask()
                threading.Thread(target=self._follow, name="rankroom-deadline", daemon=True).start()

    def make_calls(self) -> None:
        """Call what is due; in the main thread."""
        left = self.left()
        for each in self.calls:
            if each.due(left):
                each.made = True
                try:
                    each.call()
                except Exception:
                    traceback.print_exc()

    def _follow(self) -> None:
        pause = ASK_S if _on_rank() else job_end.SELDOM_S
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
        if callable(signal.getsignal(_SIGNAL)):
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
            time.sleep(1.0)  # it is made when C code returns to Python
        else:  # a library has taken our handler away, as Lightning does after a training
            self.make_calls()

    def _ask(self) -> None:
        if not _on_rank():
            if said := job_end.asked(os.environ.get("SLURM_JOB_ID", "")):
                self.until = job_end.end_time(said)
            return
        # A supervisor that does not answer for a moment changes nothing.
        with contextlib.suppress(OSError):
            rpc, key = os.environ["RANKROOM_RPC"], os.environ["RANKROOM_RPC_KEY"]
            self.until = float(ask(rpc, key, PATIENCE_S, do="until")["until"])


def _on_rank() -> bool:
    return "RANKROOM_RPC" in os.environ


def _ends() -> bool:
    """Whether there may be a limit: in a job."""
    return _on_rank() or "SLURM_JOB_ID" in os.environ


_limit = Limit()
