"""The interactive shell of a rank: what a cell shows becomes events instead of messages."""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import functools
import inspect
import json
import linecache
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core import page
from jupyter_client.jsonutil import json_clean, json_default
from traitlets import Any as AnyTrait
from traitlets import Type

from rankroom.rank.waiting import Waiting, looks_released
from rankroom.reporting import spans
from rankroom.reporting.reporter import Reporter

CHILD_EXIT_TIMEOUT_S = 0.25  # for a child process to end after an interrupt
# After which a computing thread yields the GIL; Python's default is 5 ms.
FAST_SWITCH_INTERVAL_S = 1e-4
MAX_DISPLAY_CHARS = 16 << 20  # characters of one representation; of a larger one, the size is kept
MAX_ERROR_CHARS = 20_000  # characters of an error's message, and of a line of its traceback


def is_client_request(reporter: Reporter | None) -> bool:
    """Return whether a request of one of ipyparallel's clients is running, not the cell of a
    run."""
    return reporter is not None and reporter.run is None


_print = builtins.print


class RankDisplayHook(ZMQShellDisplayHook):
    """Displays the value of a cell's last expression."""

    reporter: Reporter | None = None
    is_on = False  # while a value is being displayed

    def start_displayhook(self) -> None:
        self.is_on = True
        self._bundle: tuple[dict[str, Any], dict[str, Any]] | None = None
        if is_client_request(self.reporter):
            super().start_displayhook()

    def write_output_prompt(self) -> None:
        if is_client_request(self.reporter):
            super().write_output_prompt()

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        self._bundle = (format_dict, md_dict or {})
        if is_client_request(self.reporter):
            super().write_format_data(format_dict, md_dict)

    def finish_displayhook(self) -> None:
        self.is_on = False
        if is_client_request(self.reporter):
            super().finish_displayhook()
        elif self._bundle is not None and self.reporter is not None:
            data, metadata = self._bundle
            self.reporter.emit(
                "display", data=jsonable(data), metadata=plain_json(metadata), result=True
            )
        self._bundle = None


class RankDisplayPublisher(ZMQDisplayPublisher):
    """Publishes display(), figures and clear_output()."""

    reporter: Reporter | None = None

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        if self.reporter is None or is_client_request(self.reporter):
            how = {"transient": transient, "update": update, **kwargs}
            super().publish(data, metadata, **how)
            return
        fields: dict[str, Any] = {"data": jsonable(data), "metadata": plain_json(metadata or {})}
        display_id = (transient or {}).get("display_id")
        if display_id:
            fields["display_id"] = str(display_id)
        if update:
            fields["update"] = True
        self.reporter.emit("display", **fields)

    def clear_output(self, wait: bool = False) -> None:
        if self.reporter is None or is_client_request(self.reporter):
            super().clear_output(wait)
        else:
            self.reporter.emit("display", data={}, clear="next" if wait else "now")


class RankShell(ZMQInteractiveShell):
    """IPython on a rank."""

    displayhook_class = Type(RankDisplayHook)
    display_pub_class = Type(RankDisplayPublisher)
    reporter = AnyTrait(None, allow_none=True)
    failure: dict[str, Any] | None = None
    failing: bool = False  # from the moment an error leaves the cell; formatting it takes a while
    interrupted: bool = False  # an interrupt has cancelled what the cell awaited
    ended_by: BaseException | None = None  # what has cancelled it instead, and is the cell's error
    _depth = 0  # nesting depth of the running statements
    _told_print: Any = None

    @property
    def debugger_cls(self) -> type:
        """The debugger of %debug and %pdb, imported at the first use."""
        from rankroom.rank.debugging.debugger import RankDebugger

        return RankDebugger

    def attach(self, reporter: Reporter) -> None:
        """Send everything a cell shows to `reporter`."""
        self._process = os.getpid()
        vars(os)["system"] = _interruptible(os.system)
        self.reporter = reporter
        self.displayhook.reporter = reporter
        self.display_pub.reporter = reporter
        # IPython's advice on how to leave a prompt, which a rank does not have.
        warnings.filterwarnings("ignore", "To exit: use 'exit'")
        # Complete from the live objects; jedi would read source code, which takes long.
        self.Completer.use_jedi = False

    def _tee(self, channel: str) -> contextlib.AbstractContextManager[None]:
        """Keep no copy of what is printed: the record has it, and IPython's would only grow."""
        return contextlib.nullcontext()

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run one statement of a cell and record its span; IPython runs statements one by one."""
        begin = time.time_ns()
        self._depth += 1
        try:
            return bool(await super().run_code(code_obj, result, async_=async_))
        finally:
            self._depth -= 1
            file = code_obj.co_filename
            line = next((line for *_, line in code_obj.co_lines() if line), 1)
            number = spans.recorder.number((file, line), lambda: _statement(file, line))
            spans.recorder.add("cell", number, begin // 1000, (time.time_ns() - begin) // 1000)

    def system(self, cmd: str) -> None:
        """Run `!cmd` in a child process that writes where all children do.

        IPython uses a pseudo-terminal, which sometimes loses an interrupt and keeps waiting.
        """
        command = self.var_expand(cmd, depth=1)
        sys.stdout.flush()
        sys.stderr.flush()
        shell = shutil.which(os.environ.get("SHELL", "sh")) or "/bin/sh"
        child = subprocess.Popen([shell, "-c", command], start_new_session=True)
        try:
            code = child.wait()
        except BaseException:
            end_group(child)
            raise
        self.user_ns["_exit_code"] = code
        # IPython has this setting since 9.11.
        if code and getattr(self, "system_raise_on_error", False):
            raise subprocess.CalledProcessError(code, command)

    def init_prompts(self) -> None:
        """Set no prompts: libraries take `sys.ps1` as the sign of a prompt, with a single process.

        A rank is one of several, as under a launcher; Lightning refuses to train at a prompt.
        """

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self._show_page))  # before ipykernel's

    def _show_page(self, data: Any, *args: Any, **kwargs: Any) -> None:
        """Display `name?`: Jupyter's pager shows replies, and those of a rank are not read."""
        self.display_pub.publish(data if isinstance(data, dict) else {"text/plain": data})

    def init_user_ns(self) -> None:
        super().init_user_ns()
        # IPython's functions would end the rank.
        self.user_ns["exit"] = self.user_ns["quit"] = leave

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            kind, error, trace = self._get_exc_info(exc_tuple)
        except ValueError:  # there is no error
            super().showtraceback(exc_tuple, *args, **kwargs)
            return
        is_cells = self._depth <= 1 and _shower(sys._getframe(1)) in _CELL_ERROR_CODES
        if is_cells or self.displayhook.is_on:
            is_ended = self.interrupted or self.ended_by is not None
            if is_ended and isinstance(error, asyncio.CancelledError):
                error = (self.ended_by or KeyboardInterrupt()).with_traceback(trace)
                kind = type(error)
                exc_tuple = kind, error, trace
            if isinstance(error, KeyboardInterrupt):
                _end_in_the_cell(trace)
            with self._failing():
                self._report(kind, error, trace, exc_tuple, *args, **kwargs)
        elif self._depth and exc_tuple is None and sys.exc_info()[1] is not None:
            # From `%run`, for example: the statements after it still run, but the cell has failed.
            self._report(kind, error, trace, exc_tuple, *args, **kwargs)
        else:
            self._mention(kind, error, trace)

    def _report(self, kind: Any, error: Any, trace: Any, *args: Any, **kwargs: Any) -> None:
        if involves_exception_group(
            error
        ):  # IPython would print it without calling `_showtraceback`
            self.tell_error(kind, error, traceback.format_exception(kind, error, trace))
        else:
            self._name_module_of_cells()
            super().showtraceback(*args, **kwargs)

    def _name_module_of_cells(self) -> None:
        """Tell `inspect` which module cells belong to. It searches all modules for it otherwise,
        four times for each frame: with PyTorch and TensorFlow, 15 s for a RecursionError."""
        known = getattr(inspect, "modulesbyfile", {})
        files = (str(Path(file).absolute()) for file in self.cells())
        known.update(dict.fromkeys(files, self.user_module.__name__))

    def show_usage_error(self, exc: Any) -> None:
        self.tell_error(type(exc), exc, [f"UsageError: {exc}"])

    def fail(self, error: BaseException) -> None:
        """Report an error that has ended the cell without IPython showing it."""
        with self._failing():
            self.tell_error(type(error), error, traceback.format_exception(error))

    def _mention(self, kind: Any, error: Any, trace: Any) -> None:
        """Show an error that does not end the cell: one in a representation, or in a callback."""
        lines = traceback.format_exception(kind, error, trace)
        if is_client_request(self.reporter):
            super()._showtraceback(kind, error, lines)
        else:
            sys.stderr.write("".join(lines))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Report the failure before the traceback is made, and give way to the threads that tell
        the other ranks and release them, as those may be waiting for this one."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(FAST_SWITCH_INTERVAL_S)
        try:
            self._fail()
            yield
        finally:
            sys.setswitchinterval(interval)

    def _fail(self) -> None:
        # An interrupt that comes now would end the report of the failure, not the cell.
        ignore_interrupts()
        self.tell_raised()

    def tell_raised(self) -> None:
        """Report that this rank has raised, so that others are released before its cell ends."""
        self.failing = True
        if self.reporter is not None:
            self.reporter.emit_now("mark", name="raised")

    def showsyntaxerror(self, *args: Any, **kwargs: Any) -> None:
        # Within a statement, `showtraceback` has found out whether it ends the cell.
        with contextlib.nullcontext() if self._depth else self._failing():
            super().showsyntaxerror(*args, **kwargs)

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        self.tell_error(etype, evalue, stb)

    def tell_error(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Put an error of the cell into its record.

        No library replaces a method of this name: `rich.traceback.install` replaces IPython's own
        by ones that show the error and report nothing.
        """
        if is_client_request(self.reporter):
            super()._showtraceback(etype, evalue, stb)
            return
        if os.getpid() != self._process:  # forked: its events are dropped
            sys.stderr.write("\n".join(str(line) for line in stb) + "\n")
        self._last_traceback = stb
        error = {
            "ename": etype.__name__,
            "evalue": _bounded(text_of(evalue)),
            "cell_line": self.cell_line(evalue),
        }
        self.failure = error
        more = {}
        if Waiting.broken and looks_released(error["ename"], error["evalue"]):
            more["released"] = Waiting.broken
        if self.reporter is not None:
            lines = [_bounded(str(line)) for line in stb]
            self.reporter.emit("error", traceback=lines, **error, **more)

    def note_replaced_print(self) -> None:
        """Note once that print() was replaced: scripts for several processes often use one that
        prints on the first of them only, so that the output of the others looks lost."""
        own = builtins.print
        if own in (_print, self._told_print):
            return
        self._told_print = own
        file = getattr(getattr(own, "__code__", None), "co_filename", "")
        where = "a cell" if file in self.cells() else file or "a library"
        name = getattr(own, "__qualname__", type(own).__name__)
        spans.recorder.note(PRINT_REPLACED.format(name=name, where=where))

    def cells(self) -> set[str]:
        """Return the file names that cells were compiled with."""
        return set(getattr(self.compile, "_filename_map", {}))

    def cell_line(self, error: BaseException) -> int | None:
        """Return the line of the current cell nearest to where `error` was raised, from 1."""
        cells = self.cells()
        present = line = None
        if isinstance(error, SyntaxError) and error.filename in cells:
            return error.lineno
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            if file in cells and present in (None, file):  # functions of earlier cells are between
                present, line = file, number
        return line


def _statement(file: str, line: int) -> dict[str, Any]:
    text = linecache.getline(file, line).strip()
    return {"name": text[:80] or f"line {line}", "line": line}


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a shell and what it started: by an interrupt, then by SIGKILL, at once if another
    interrupt comes."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        try:
            child.wait(CHILD_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise


def _interruptible(original: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return an `os.system` that an interrupt ends. C's ignores interrupts, as a terminal sends
    them to the command, too; but on a rank, only the rank's process gets them."""
    process = os.getpid()

    @functools.wraps(original)
    def system(command: Any) -> int:
        if os.getpid() != process:
            return original(command)
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            start_new_session=True, close_fds=False, restore_signals=False,  # as in C's
        )  # fmt: skip
        try:
            code = child.wait()
        except BaseException:
            end_group(child)
            raise
        return code << 8 if code >= 0 else -code  # as os.wait() returns it

    return system


def ignore_interrupts() -> None:
    """Ignore interrupts until the next request, for which the kernel sets the handler again."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def text_of(value: Any) -> str:
    """Return `str(value)`, or words in its place if that fails."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose str() raised {type(error).__name__}>"


def _bounded(text: str) -> str:
    """Return an error's text, cut for the record, which is sent again with every change."""
    more = len(text) - MAX_ERROR_CHARS
    return f"{text[:MAX_ERROR_CHARS]}… ({more:,} more characters)" if more > 0 else text


def jsonable(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle as JSON can hold it: bytes in base64, and only the size of what is too
    large."""
    out: dict[str, Any] = {}
    named = []
    for mime, value in bundle.items():
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode("ascii")
        value = plain_json(value)
        size = len(value) if isinstance(value, str) else len(json.dumps(value)) if value else 0
        if size > MAX_DISPLAY_CHARS:
            named.append(f"<{mime} of {size:,} characters, not kept>")
        else:
            out[mime] = value
    if named:
        out["text/plain"] = "\n".join([*filter(None, [out.get("text/plain")]), *named])
    return out


def plain_json(value: Any) -> Any:
    """Return a value as JSON can hold it, converted as in Jupyter (NumPy's numbers, NaN), or else
    its repr."""
    if value is None or isinstance(value, str | bool):
        return value
    try:
        return json.loads(json.dumps(value, default=json_default, allow_nan=False))
    except (TypeError, ValueError):
        pass
    try:
        return json.loads(json.dumps(json_clean(value), default=json_default, allow_nan=False))
    except (TypeError, ValueError):
        return repr(value)


def leave(status: Any = None) -> None:
    """End the cell, but not the rank: `exit()` and `quit()` in a cell."""
    raise SystemExit(status)


def involves_exception_group(error: BaseException | None) -> bool:
    """Return whether an error is an exception group, or was caused by one."""
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    seen: set[int] = set()  # an error may be its own cause: `raise error from error`
    todo = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, group):
            return True
        seen.add(id(each))
        todo += [each.__cause__, each.__context__]
    return False


def _end_in_the_cell(trace: TracebackType | None) -> None:
    """Cut an interrupt's traceback where the interrupt came, leaving out our handler."""
    last = None
    while trace is not None:
        if not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("rankroom.reporting."):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None


def _shower(frame: FrameType) -> Any:
    """Return the code that shows an error, or its caller if a library passes the error on (as rich
    does)."""
    is_passed_on = not str(frame.f_globals.get("__name__", "")).startswith("IPython.")
    return (frame.f_back if is_passed_on and frame.f_back else frame).f_code


# The functions of IPython that show the error with which a cell ends.
_CELL_ERROR_CODES = (
    ZMQInteractiveShell.run_code.__code__,
    ZMQInteractiveShell.run_ast_nodes.__code__,
)
PRINT_REPLACED = (
    "`print` was replaced by `{name}` of {where}, for later cells as well. Ranks on which it "
    "prints nothing look silent; restarting a rank restores Python's `print`"
)
