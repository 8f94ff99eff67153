"""The debugger of a rank: IPython's, adapted to the cells of runs.

It stops at the line of breakpoint() itself, and steps from one statement of a cell to the next
although IPython runs each separately. An interrupt, or quitting it, ends the cell.
"""

from __future__ import annotations

import inspect
import sys
from bdb import BdbQuit
from types import FrameType, TracebackType
from typing import Any

from IPython.core.debugger import Pdb

from rankroom.rank.debugging import prompts
from rankroom.rank.world import ReleasedError

QUIT = "the debugger was quit"


class RankDebugger(Pdb):
    """Reads its commands as input() does, so from the run's prompt."""

    stopped_in: FrameType | None = None

    def __init__(
        self, completekey: Any = None, stdin: Any = None, stdout: Any = None, **options: Any
    ) -> None:
        # Interrupts are for the cell: no SIGINT handler of pdb may outlive the debugger.
        super().__init__(completekey, stdin, stdout, **{**options, "nosigint": True})
        self._interrupted = False
        self._traces = True  # whether to trace after this stop
        self._between = False  # two statements of the cell, in IPython's own code

    # -- stopping

    def set_trace(self, frame: FrameType | None = None, **_: Any) -> None:
        """Stop in `frame` now; the command that resumes decides what is traced afterwards."""
        __tracebackhide__ = True
        frame = frame or sys._getframe(1)
        if _passed_over(frame):
            return  # before tracing starts, as each line would be reported as skipped
        prompts.debuggers.add(self)
        sys.settrace(None)
        self.stdout = sys.stdout
        self.initial_frame = frame
        self.reset()
        self._traces, self._between = True, False
        each: FrameType | None = frame
        while each is not None:
            each.f_trace = self.trace_dispatch
            self.botframe = each
            each = each.f_back
        self.set_step()
        error: BaseException
        try:
            self.interaction(frame, None)
            if not self.quitting:
                if self._traces:
                    sys.settrace(self.trace_dispatch)
                return
            error = KeyboardInterrupt(QUIT)
        except (KeyboardInterrupt, ReleasedError) as ended:
            error = ended
        sys.settrace(None)
        raise error.with_traceback(None) from None

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        __tracebackhide__ = True
        error: BaseException
        try:
            return super().trace_dispatch(frame, event, arg)
        except BdbQuit:
            error = KeyboardInterrupt(QUIT)
        except (KeyboardInterrupt, ReleasedError) as ended:
            error = ended
        raise error.with_traceback(None) from None

    def set_continue(self) -> None:
        super().set_continue()
        self._traces = bool(self.breaks)

    def forget(self) -> None:
        """Also drop the variables of the frame in which it stopped, which pdb keeps until the next
        stop: they may hold a model, on a GPU."""
        super().forget()
        self.__dict__.pop("curframe_locals", None)

    def forget_cell(self) -> None:
        """Drop the frames of a cell that is over, and so its variables."""
        self.__dict__.pop("initial_frame", None)
        self.reset()

    # -- from one statement of a cell to the next

    def stop_here(self, frame: FrameType) -> bool:
        if self._between and not self._is_of_cell(frame):
            return False
        if frame.f_globals.get("__name__", "").startswith("rankroom.rank"):
            return False
        return bool(super().stop_here(frame))

    def user_line(self, frame: FrameType) -> None:
        self._between = False
        super().user_line(frame)

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        if not self._is_of_cell(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if self._is_of_cell(frame):
            self._between = True
            self.set_step()
        else:
            super().user_return(frame, return_value)

    def _is_of_cell(self, frame: FrameType) -> bool:
        """Return whether this frame runs a cell's own code, not that of a function."""
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        return not is_function and frame.f_code.co_filename in self.shell.cells()

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Format as IPython does, but name a cell as in tracebacks rather than by its file."""
        entry: str = super().format_stack_entry(frame_lineno, lprefix)
        file = frame_lineno[0].f_code.co_filename
        if file not in self.shell.cells():
            return entry
        return entry.replace(file, " ".join(self.shell.compile.format_code_name(file)), 1)

    # -- asking

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        self.stopped_in = frame or _innermost(getattr(tb_or_exc, "__traceback__", tb_or_exc))
        if _passed_over(self.stopped_in):
            return
        self._interrupted = False
        try:
            super().interaction(frame, tb_or_exc)
        finally:
            self.stopped_in = None
        if self._interrupted:
            raise KeyboardInterrupt

    def _cmdloop(self) -> None:
        asking = prompts.of_this_rank
        before = asking and asking.debugger
        try:
            if asking is not None:
                asking.debugger = self
            self.cmdloop()
        except KeyboardInterrupt:  # IPython's `interaction` would drop it, and the cell continue
            self._interrupted = True
        finally:
            if asking is not None:
                asking.debugger = before


def _passed_over(frame: FrameType | None) -> bool:
    """Return whether no user can answer here, and if so, report that in the log."""
    asking = prompts.of_this_rank
    if asking is None or not (why := asking.refusal()):
        return False
    asking.pass_over("the debugger", asking.place(frame), why)
    return True


def _innermost(trace: TracebackType | None) -> FrameType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame if trace is not None else None
