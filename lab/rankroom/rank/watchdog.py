"""The watchdog thread of a rank: notices that the cell is stuck, and reports where it is.

It samples the main thread twice a second; nothing is sent while the cell makes progress.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

# Bound here, as a cell may replace them in their module, to test its own code.
from time import monotonic
from time import time as epoch_s
from types import FrameType
from typing import Any

from rankroom.rank import stacks
from rankroom.rank.computing import Computing
from rankroom.rank.frameworks.horovod import horovod_spans
from rankroom.rank.frameworks.torch import torch_ddp_group, torch_device
from rankroom.rank.waiting import Waiting

SAMPLE_INTERVAL_S = 0.5
BLOCKED_REPORT_DELAY_S = 1.0  # in one collective, before that is reported
STUCK_TIMEOUT_S = 2.0  # without a step of the main thread, before that is reported
# How long it may be idle while other threads or child processes compute for it, as compilers do.
COMPUTING_TIMEOUT_S = 300.0
IDLE_CPU_SHARE = 0.02  # of one core: a main thread that uses less does not compute


class Watchdog:
    """Watches the main thread of a rank.

    `running()` returns the run whose cell is running, or None; `emit(name, args)` reports a mark;
    `cells()` returns the file names of this session's cells; `idle()` is called between cells;
    `asking()` returns what `standing()` does if the rank waits for a user's answer, else None.
    """

    def __init__(
        self,
        running: Callable[[], str | None],
        emit: Callable[[str, dict[str, Any]], None],
        cells: Callable[[], set[str]],
        idle: Callable[[], None] = lambda: None,
        asking: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self._running = running
        self._emit = emit
        self._cells = cells
        self._idle = idle
        self._asking = asking
        main = threading.main_thread()
        self._clock = time.pthread_getcpuclockid(main.ident) if main.ident else 0
        self._step: object = None  # of the main thread, at the last sample
        self._since = monotonic()
        self._line: object = None  # `_step` without the count of time slices
        self._line_since = self._since
        self._cpu = 0.0
        self._computing = Computing()
        self._beside: str | None = None  # what computed last while the main thread was idle
        self._computed = 0.0
        self._over = threading.Event()
        self._told: str | None = None  # the run that was reported as stuck

    def start(self) -> None:
        """Start the thread."""
        self._over = threading.Event()
        watch = threading.Thread(target=self._watch, name="rankroom-watchdog", daemon=True)
        watch.start()

    def stop(self) -> None:
        """Stop the thread, to measure what it costs."""
        self._over.set()

    def standing(self) -> dict[str, Any]:
        """Return where the rank is now: its state, what it waits in, for how many seconds, and the
        place in the cell."""
        if self._running() is None:
            return {"state": "ended"}
        if asks := self._asking():
            return asks
        frame = stacks.main_frame()
        place = stacks.place(frame, self._cells())
        about = {"cell_line": place.cell_line, "code": place.code}
        wait = Waiting.current
        now = monotonic()
        if wait is not None:
            return {"state": "waits", "what": wait.what, "seconds": now - wait.since, **about}
        # It may have moved since the last sample.
        moved = _step(frame) != self._step
        # Native code records no `Waiting`; but the main thread is idle, and this is pending.
        found = _in_flight() if not moved and now - self._since > STUCK_TIMEOUT_S else None
        if found := found or self._waits_on_gpu(frame, now):
            what, seconds = found
            return {"state": "waits", "what": what, "seconds": seconds, **about}
        about["what"] = None
        if not moved and now - self._computed < STUCK_TIMEOUT_S:
            about["beside"] = self._beside
        still = 0.0 if moved else self._still(now)
        if still > STUCK_TIMEOUT_S:
            return {"state": "still", "seconds": still, **about}
        return {"state": "busy", "seconds": 0, **about}

    def _watch(self) -> None:
        over = self._over
        # All ranks at the same moment: while one samples, those that train with it have to wait.
        while not over.wait(SAMPLE_INTERVAL_S - epoch_s() % SAMPLE_INTERVAL_S):
            with contextlib.suppress(Exception):  # the next turn may succeed
                self._take_turn()

    def _take_turn(self) -> None:
        run = self._running()
        if run is None:
            self._told = None
            self._idle()
            return
        self._look()
        stuck = self._is_stuck()
        if stuck and self._told != run:
            self._told = run
            self._emit("stands", self.standing())
        elif not stuck and self._told == run:
            self._told = None
            self._emit("moves", {})

    def _look(self) -> None:
        """Sample the main thread: note when it last took a step, or used the processor."""
        now = monotonic()
        frame = stacks.main_frame()
        step = _step(frame)
        cpu = time.clock_gettime(self._clock)
        moved = step != self._step or cpu - self._cpu > IDLE_CPU_SHARE * SAMPLE_INTERVAL_S
        self._step, self._cpu = step, cpu
        if step[:2] != self._line:
            self._line, self._line_since = step[:2], now
        if moved:
            self._since = now
            self._computing.forget()
        # Early enough for two samples before STUCK_TIMEOUT_S is over.
        elif now - self._since > STUCK_TIMEOUT_S - 2.5 * SAMPLE_INTERVAL_S and (
            beside := self._computing.look(cpu)
        ):
            self._beside, self._computed = beside, now

    def _still(self, now: float) -> float:
        """Return for how many seconds the main thread has been idle and nothing has computed for
        it; what computes no longer counts after COMPUTING_TIMEOUT_S."""
        still = now - self._since
        return still if still > COMPUTING_TIMEOUT_S else min(still, now - self._computed)

    def _is_stuck(self) -> bool:
        if self._asking():  # the user who is asked knows it already
            return False
        now = monotonic()
        wait = Waiting.current
        if wait is not None:
            return now - wait.since > BLOCKED_REPORT_DELAY_S
        if self._waits_on_gpu(stacks.main_frame(), now):
            return True
        if now - self._since <= STUCK_TIMEOUT_S:
            return False
        return self._still(now) > STUCK_TIMEOUT_S or _in_flight() is not None

    def _waits_on_gpu(self, frame: FrameType | None, now: float) -> tuple[str, float] | None:
        """Return what the GPU waits in, and for how many seconds, if the main thread waits for it,
        which uses the processor.

        The GPU is not queried while the thread moves: a query would end the recording of a graph.
        """
        if _step(frame)[:2] == self._line and now - self._line_since > STUCK_TIMEOUT_S:
            return torch_device.blocking_collective()
        return None


def _in_flight() -> tuple[str, float] | None:
    return horovod_spans.in_flight("tensorflow") or torch_ddp_group.in_flight()


def is_running() -> bool:
    """Return whether the main thread runs or waits for a processor, not for anything else."""
    with contextlib.suppress(OSError), open(_of_main("stat"), "rb") as file:  # noqa: PTH123
        # After the name, which may contain anything.
        return file.read().rpartition(b")")[2].split()[:1] == [b"R"]
    return False


def _step(frame: FrameType | None) -> tuple[int, int, bytes]:
    """Return a value that changes whenever the main thread does something.

    A loop may be found in the same place twice, but not with the same count of time slices.
    """
    slices = b""
    with contextlib.suppress(OSError), open(_of_main("schedstat"), "rb") as file:  # noqa: PTH123 - twice a second
        slices = file.read().rpartition(b" ")[2]
    return id(frame), frame.f_lasti if frame else 0, slices


def _of_main(what: str) -> str:
    """Return the path of the file `what` in /proc on the main thread, whose id is the process's.

    The last number in `schedstat` counts its time slices.
    """
    return f"/proc/self/task/{os.getpid()}/{what}"
