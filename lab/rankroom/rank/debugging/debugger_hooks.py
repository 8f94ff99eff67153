"""The hooks that lead breakpoint(), `pdb` and IPython to the debugger of a rank.

The debugger is imported when it is first needed, as it imports much of IPython.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from rankroom.rank.debugging import prompts
from rankroom.rank.debugging.prompts import Prompts
from rankroom.rank.import_hooks import when_imported

if TYPE_CHECKING:
    from rankroom.rank.debugging.debugger import RankDebugger
    from rankroom.rank.debugging.panel_debugger import PanelDebugger

_kept: RankDebugger | None = None  # has the breakpoints that were set
_panel: PanelDebugger | None = None


def install(asking: Prompts, panel: PanelDebugger) -> None:
    """Make the main thread stop where its cell asks for a debugger, with the prompt of `asking`, or
    in JupyterLab's `panel` while that is on.

    Python's own hook of breakpoint() looks up pdb.set_trace at each call, unless PYTHONBREAKPOINT
    says otherwise. It replaces that of debugpy, which comes with ipykernel and does nothing unless
    a client is connected.
    """
    global _panel
    prompts.of_this_rank, _panel = asking, panel
    sys.breakpointhook = sys.__breakpointhook__
    when_imported("pdb", _take_over)


def set_trace(
    frame: FrameType | None = None,
    *,
    header: str | None = None,
    commands: Iterable[str] | None = None,  # from Python 3.14 on
    **_: Any,
) -> None:
    """The replacement of pdb.set_trace."""
    __tracebackhide__ = True
    frame = frame or sys._getframe(1)
    asking = prompts.of_this_rank
    if asking is not None and (why := asking.refusal()):
        asking.pass_over("breakpoint()", asking.place(frame), why)
        return
    if _panel is not None and _panel.is_on:
        _panel.stop_in(frame)
        return
    debugger = _debugger()
    if header is not None:
        debugger.message(header)
    debugger.rcLines.extend(commands or ())
    debugger.set_trace(frame)


def post_mortem(t: Any = None) -> None:
    """The replacement of pdb.post_mortem."""
    __tracebackhide__ = True
    error = sys.exc_info()[1] if t is None else t
    if error is None:
        raise ValueError("post_mortem() needs a traceback if no exception is being handled")
    debugger = _debugger()
    debugger.reset()
    debugger.interaction(None, getattr(error, "__traceback__", error))


def has_traceback() -> bool:
    """Return whether there is an error to debug: a cell has failed on this rank."""
    return getattr(sys, "last_traceback", None) is not None


def stop_tracing() -> None:
    """Stop tracing after a cell, so that its breakpoints do not slow down the next, and no debugger
    holds its variables."""
    if prompts.debuggers:  # else the user's own trace function stays
        sys.settrace(None)
    while prompts.debuggers:
        prompts.debuggers.pop().forget_cell()


def _take_over(pdb: ModuleType) -> None:
    vars(pdb).update(set_trace=set_trace, post_mortem=post_mortem)


def _debugger() -> RankDebugger:
    """Return the rank's debugger, or a new one while that is executing a command itself."""
    global _kept
    from rankroom.rank.debugging.debugger import RankDebugger

    if _kept is None:
        _kept = RankDebugger()
    is_busy = prompts.of_this_rank is not None and prompts.of_this_rank.debugger is _kept
    return RankDebugger() if is_busy else _kept
