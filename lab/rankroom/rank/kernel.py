"""The kernel of a rank: runs the cells of distributed runs, and ipyparallel clients' requests."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ipyparallel.engine.kernel import IPythonParallelKernel
from IPython.core.error import StdinNotImplementedError
from traitlets import Type

from rankroom.rank import packed_values, stacks
from rankroom.rank.client_output import ClientOutput
from rankroom.rank.debugging import debugger_hooks
from rankroom.rank.debugging.panel_debugger import PanelDebugger
from rankroom.rank.debugging.prompts import Prompts
from rankroom.rank.frameworks.horovod import horovod_spans
from rankroom.rank.frameworks.torch import torch_adapter, torch_device
from rankroom.rank.profiler import Profile, profiled
from rankroom.rank.recovery import Recovery
from rankroom.rank.script import end_fork
from rankroom.rank.shell import RankShell, ignore_interrupts, text_of
from rankroom.rank.supervisor_connection import Done
from rankroom.rank.waiting import Waiting, looks_released
from rankroom.rank.watchdog import Watchdog, is_running
from rankroom.rank.world import PREDEFINED_NAMES, ReleasedError, World
from rankroom.reporting import call_line
from rankroom.reporting.reporter import Reporter
from rankroom.reporting.samples import Sampler
from rankroom.reporting.spans import recorder, span
from rankroom.system import shared_memory

# Only cells with these words are checked for how to run them; others never run asynchronously.
_MAY_AWAIT = re.compile(r"\b(await|async)\b")
REPLY_FLUSH_S = 0.1  # for a reply to be sent by a process that is about to end
END_REPEAT_DELAY_S = 0.03  # after the last event of a cell, until its end is reported once more
_NO_INPUT = (
    "{what} cannot read an answer on a rank: {why}. "
    "Ask in a `%%local` cell and send the answer with `%ranks push NAME`."
)


class RankKernel(IPythonParallelKernel):
    """An engine's kernel that also runs the cells of Rankroom's runs.

    Such a cell is `{source, run, start, ranks, epoch, count, settle, profile, own, interactive}`.
    If a previous process of this rank died in the run, and this one is to continue it, the cell
    also has `{back, meeting, seq, starts}`.
    """

    shell_class = Type(RankShell)
    reporter: Reporter
    client_output: ClientOutput
    world: World
    recovery: Recovery
    watchdog: Watchdog
    prompts: Prompts
    panel: PanelDebugger
    released: bool = False
    # At the request to release: whether the cell was failing here, whether the supervisor knew
    # that, and whether anything was released.
    failed_before: bool = False
    raised_before: bool = False
    let_go: bool = False

    def initialize_rank(
        self,
        world: World,
        reporter: Reporter,
        recovery: Recovery,
        output: ClientOutput,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """Become a rank; called once, when the engine has registered.

        `tell(event)` sends an event of this rank to JupyterLab's debugger.
        """
        self.world = world
        os.register_at_fork(after_in_child=world.leave)
        self.client_output = output
        self.reporter = reporter
        self.recovery = recovery
        self.shell.attach(reporter)
        reporter.sources.append(horovod_spans.take)
        reporter.sampler = Sampler(world.device)
        self.prompts = Prompts(reporter.emit_now, self.shell.cells)
        self.panel = PanelDebugger(self.prompts, self.shell.cells, tell)
        debugger_hooks.install(self.prompts, self.panel)
        self.watchdog = Watchdog(
            lambda: reporter.run,
            lambda name, args: reporter.emit_now("mark", name=name, args=args),
            self.shell.cells,
            recovery.look,
            self.prompts.standing,
        )
        # ipyparallel uses a process beside each engine for this; ranks have none.
        self.control_handlers["signal_request"] = self._signal_request
        self._loop = asyncio.get_event_loop()
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        Profile.install()
        call_line.cells = lambda: getattr(self.shell.compile, "_filename_map", ())
        self._process = os.getpid()
        self._notice_dropped()
        self.define_names()

    def define_names(self) -> None:
        """Define the names that a cell finds on every rank, unless the user defined them."""
        world = self.world
        for name in PREDEFINED_NAMES:
            own = span if name == "span" else getattr(world, name)
            self.shell.user_ns.setdefault(name, own)

    def schedule_request(self, what: dict[str, Any], buffers: list[bytes], done: Done) -> None:
        """Schedule a cell or a request about variables in the main thread; called from another."""
        self._loop.call_soon_threadsafe(self._begin, what, buffers, done, context=self._context)

    def _begin(self, what: dict[str, Any], buffers: list[bytes], done: Done) -> None:
        # Context variables that a cell sets (decimal's precision, say) stay set for the next one.
        more: dict[str, Any] = {} if sys.version_info < (3, 11) else {"context": self._context}
        task = self._loop.create_task(self._do_alone(what, buffers, done), **more)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pre_handler_hook(self) -> None:
        """Prepare for a cell, or for a request of one of ipyparallel's clients."""
        super().pre_handler_hook()
        signal.signal(signal.SIGINT, self.reporter.interrupt)
        stacks.answer_again()

    async def _do_alone(self, what: dict[str, Any], buffers: list[bytes], done: Done) -> None:
        async with self._one_at_a_time:
            answer: dict[str, Any] = {}
            found: list[bytes] = []
            try:
                if what["do"] == "execute":
                    with contextlib.suppress(KeyboardInterrupt):
                        self.pre_handler_hook()
                    ignore_interrupts()  # an interrupt before the cell is sent again
                    await self._run(what)
                else:
                    self.pre_handler_hook()
                    found = packed_values.handle_request(what["how"], what["name"], buffers)
            except KeyboardInterrupt:
                answer = {"failed": "KeyboardInterrupt: the request was interrupted"}
            except BaseException as error:  # extensions raise some that are no Exception
                answer = {"failed": f"{type(error).__name__}: {text_of(error)}"}
            finally:
                self.post_handler_hook()
                if what["do"] == "execute":
                    # The last event has reported the end; this is in case that was lost.
                    self._loop.call_later(END_REPEAT_DELAY_S, done, answer)
                    self._loop.call_later(END_REPEAT_DELAY_S, self.reporter.prepare)
                else:
                    done(answer, *found)

    async def dispatch_shell(self, *args: Any, **kwargs: Any) -> None:
        """Make requests of ipyparallel's clients wait for the cell of a run, and the reverse."""
        if kwargs.get("concurrent"):  # a comm message, for which an async cell may be waiting
            await super().dispatch_shell(*args, **kwargs)
            return
        async with self._one_at_a_time:
            with self.client_output.published():
                await super().dispatch_shell(*args, **kwargs)

    async def _run(self, run: dict[str, Any]) -> None:
        """Run the cell of a run, and report its start, its error and its end."""
        self.define_names()  # again, after `%reset`
        self.shell.execution_count = run["count"]
        self.shell.failure, self.shell.failing, self.shell.interrupted = None, False, False
        self.shell.ended_by = None
        self.shell.displayhook.is_on = False  # an interrupt may have ended a display
        Waiting.broken, Waiting.current = "", None
        self.released = self.failed_before = self.raised_before = self.let_go = False
        ended: int | None = None
        # First of all, so that whatever goes wrong from here on is in the record.
        self.reporter.begin(run["run"], run["start"], run.get("seq", 0), run.get("starts", 0))
        try:
            signal.signal(signal.SIGINT, self.reporter.interrupt)
            self._forward_input(False)
            self.prompts.begin(bool(run.get("interactive")))
            if run.get("meeting"):
                self._tell_regrouped(run["meeting"])
            self.recovery.begin(
                run["run"], run["ranks"], run["epoch"], run["settle"], bool(run.get("own")),
                run.get("meeting", 0), run.get("back", ""),
            )  # fmt: skip
            self._tell_size(self.world.whole)
            self.panel.begin_cell()
            with profiled(run.get("profile", False)):
                result = await self._run_cell(run["source"])
                error = result and (result.error_before_exec or result.error_in_exec)
                if os.getpid() != self._process:
                    is_exit = isinstance(error, SystemExit)
                    end_fork(error.code if is_exit else int(error is not None))
                if error is not None and self.shell.failure is None:
                    self.shell.fail(error)  # some end a cell without IPython showing them
                self._flush_replaced()
                ended = time.time_ns() // 1000
        except BaseException as error:
            # An error of ours, not of the cell or IPython: report it rather than call the run done.
            self.shell.tell_error(type(error), error, traceback.format_exception(error))
        finally:
            ignore_interrupts()
            size = self.world.size
            for step in (
                self.prompts.end, self.panel.end_cell, debugger_hooks.stop_tracing,
                self.shell.note_replaced_print, self._restore_input, self.recovery.end,
                lambda: self._tell_size(size),
            ):  # fmt: skip
                try:
                    step()
                except Exception as error:  # the cell's end must be reported, whatever else fails
                    trace = traceback.format_exception(error)
                    self.shell.tell_error(type(error), error, trace)
            failure = self.shell.failure
            if failure is not None and shared_memory.is_too_small(failure["evalue"]):
                recorder.note(f"rank {self.world.rank}: {shared_memory.words()}")
            if failure is not None and torch_device.is_lost(failure["evalue"]):
                recorder.note(torch_device.GPU_LOST.format(rank=self.world.rank))
            if failure is not None and failure["ename"] == "NameError" and run.get("back"):
                recorder.note(NAMES_LOST_BY_RESTART.format(rank=self.world.rank))
            # `ended` is from before the profile was made: that is not the cell's time.
            self.reporter.end(self._outcome(), ended)

    def _flush_replaced(self) -> None:
        """Flush what the cell, or an earlier one, has put in place of stdout and stderr, such as
        one with another encoding: what it still holds belongs to this cell."""
        for each in (sys.stdout, sys.stderr):
            if each is not self.reporter.stdout and each is not self.reporter.stderr:
                with contextlib.suppress(Exception):  # it may be closed, or no file at all
                    each.flush()

    def _tell_regrouped(self, meeting: int) -> None:
        """Mark that collectives from here on are those of the ranks regrouped in an elastic run."""
        recorder.regroup()
        self.reporter.emit("mark", name="regrouped", args={"meeting": meeting})

    def _tell_size(self, before: int) -> None:
        """Set the variable `size` to the number of ranks, unless the user has reassigned it."""
        names = self.shell.user_ns
        own = names.get("size")  # the user may have made it an array
        if before != self.world.size and type(own) is int and own == before:
            names["size"] = self.world.size

    async def _run_cell(self, code: str) -> Any:
        """Run a cell as ipykernel does, for a kernel without ipykernel's shell-channel thread."""
        shell = self.shell
        if not _MAY_AWAIT.search(code):
            return shell.run_cell(code, store_history=True, silent=False)
        broken = None
        try:
            transformed = shell.transform_cell(code)
        except Exception:
            transformed, broken = code, sys.exc_info()
        how = {"transformed_cell": transformed, "preprocessing_exc_tuple": broken}
        if not shell.should_run_async(code, **how):
            return shell.run_cell(code, store_history=True, silent=False)
        task = asyncio.ensure_future(shell.run_cell_async(code, store_history=True, **how))
        result = None
        with self._interrupts(task):
            try:
                result = await task
            except asyncio.CancelledError:
                # An interrupt before the first statement, or after the last one.
                error = shell.ended_by or KeyboardInterrupt()
                words = traceback.format_exception_only(type(error), error)
                shell.tell_error(type(error), error, [each.rstrip() for each in words])
            finally:
                shell.events.trigger("post_execute")
                shell.events.trigger("post_run_cell", result)
        return result

    @contextlib.contextmanager
    def _interrupts(self, cell: asyncio.Task[Any]) -> Iterator[None]:
        """Let an interrupt end an async cell: raise it in the cell's code, or cancel its await.

        Raised anywhere else, it would end the event loop, and the rank with it.
        """
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: FrameType | None) -> None:
            cells = self.shell.cells()
            runs = any(each.f_code.co_filename in cells for each, _ in traceback.walk_stack(frame))
            current = asyncio.current_task(loop)
            if runs and current is cell:
                self.reporter.interrupt(number, frame)
                return
            self.shell.ended_by = ended_by = self.reporter.ends_with()
            self.shell.interrupted |= ended_by is None
            self.reporter.is_interrupted |= ended_by is None
            loop.call_soon_threadsafe(cell.cancel)
            if runs and current is not None:  # a task that the cell has created is running
                self.reporter.interrupt(number, frame, asyncio.CancelledError)

        before = signal.signal(signal.SIGINT, handle)
        own, self.reporter.handles_interrupt = self.reporter.handles_interrupt, handle
        try:
            yield
        finally:
            self.reporter.handles_interrupt = own
            if signal.getsignal(signal.SIGINT) is handle:  # unless its error is being reported
                signal.signal(signal.SIGINT, before)

    def _outcome(self) -> str:
        failure = self.shell.failure
        if failure is None:
            return "ok"
        if failure["ename"] == "KeyboardInterrupt":
            return "interrupted"
        if not (self.released or self.recovery.began_released) or self.raised_before:
            return "error"
        if looks_released(failure["ename"], failure["evalue"]):
            # Even if it failed before the request: another rank's release may reach it first.
            return "released"
        if self.world.has_met_again:
            return "error"
        let_go = self.let_go or self.recovery.began_let_go
        return "released" if let_go and not self.failed_before else "error"

    def _abort_queues(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a failed cell must not cancel requests of other kernels."""

    def _publish_execute_input(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run's record holds the source."""

    def raw_input(self, prompt: object = "") -> str:
        __tracebackhide__ = True
        if stopped := self.prompts.stopped_in(str(prompt)):
            return self._asked("debugger", str(prompt), stopped)
        return self._asked("input", str(prompt), sys._getframe(1))

    def getpass(self, prompt: str = "Password: ", stream: Any = None) -> str:
        __tracebackhide__ = True
        return self._asked("password", prompt, sys._getframe(1))

    def _asked(self, kind: str, text: str, frame: FrameType) -> str:
        __tracebackhide__ = True
        if why := self.prompts.refusal():
            what = "getpass()" if kind == "password" else "input()"
            raise StdinNotImplementedError(_NO_INPUT.format(what=what, why=why))
        return self.prompts.ask(kind, text, frame)

    def _forward_input(self, allow_stdin: bool = False) -> None:
        super()._forward_input(False)

    async def _signal_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Send this rank the signal that one of ipyparallel's clients requests."""
        number = parent["content"]["sig"]
        number = getattr(signal, number) if isinstance(number, str) else number
        # Reply first: if the signal ends this rank, the client would wait forever.
        self.session.send(stream, "signal_reply", {"status": "ok"}, parent, ident=ident)
        if number not in (0, signal.SIGINT):
            await asyncio.sleep(REPLY_FLUSH_S)
        os.kill(os.getpid(), number)

    def debug(self, message: dict[str, Any], done: Done) -> None:
        """Handle a request of JupyterLab's debugger to this rank; called from any thread."""
        self.panel.take(message, done)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Reply to a request while a cell runs or hangs; called in a thread of its own."""
        if question["do"] == "clock":
            return {"time": time.time_ns() // 1000}
        busy = self.reporter.run
        if question["do"] == "answer":
            is_ours = busy == question["run"]
            number, text = question["prompt"], question["text"]
            return {"taken": is_ours and self.prompts.answer(number, text)}
        if question["do"] == "complete":
            return self.prompts.complete(question["prompt"], question["text"])
        if question["do"] == "release":
            peers_left = bool(question.get("parted"))
            again = bool(question.get("again"))  # the ranks may have met again since
            if busy not in (None, question["run"]):
                return {"released": self.recovery.release(question["run"], peers_left)}
            # Until they have, an error here is that of the release before.
            counts = busy is not None and (
                not self.released or (again and self.world.has_met_again)
            )
            is_new = busy is None or not self.released or again
            if counts:
                self.failed_before = bool(self.shell.failing)
                self.raised_before = self.reporter.rank in question.get("raised", ())
                self.released = self.let_go = True
                is_over = bool(question.get("interrupted")) or self.failed_before
                # Before the release, as the cell continues as soon as its GPU is idle.
                is_cut_off = not is_over and torch_adapter.is_cut_off()
                if is_cut_off and not self.reporter.end_cell(ReleasedError(GPU_ABORTED)):
                    recorder.note(GPU_ABORTED_CELL_CONTINUES.format(rank=self.world.rank))
            # A rank that was released already may get a second request, to leave a debugger.
            done = self.recovery.release(question["run"], peers_left) if is_new else []
            if question.get("prompts"):
                done = [*self.prompts.release(), *done]
            if counts:
                self.let_go = bool(done)
            return {"released": done}
        if question["do"] == "regroup":
            self._tell_regrouped(question["meeting"])
            return {"released": self.recovery.regroup(question["run"], question["meeting"])}
        if question["do"] == "stacks":
            return {"run": busy, "stacks": stacks.stacks(self.shell.cells())}
        return {
            "run": busy,
            "failing": busy is not None and bool(self.shell.failing),
            "tidying": stacks.handles_interrupt(),
            "interrupted": self.reporter.is_interrupted or self._handles_interrupts(),
            "stands": self.watchdog.standing(),
            "computes": Waiting.current is None and is_running(),
        }

    def _handles_interrupts(self) -> bool:
        """Return whether the cell has its own SIGINT handler, which decides what one does."""
        handler = signal.getsignal(signal.SIGINT)
        known = self.reporter.handles_interrupt, signal.default_int_handler
        return callable(handler) and handler not in known

    def _notice_dropped(self) -> None:
        """Reset `is_interrupted` when Python drops an interrupt, as in a destructor or during a
        fork: the cell has not seen it."""
        before = sys.unraisablehook

        def hook(what: Any) -> None:
            if isinstance(what.exc_value, KeyboardInterrupt):
                self.reporter.is_interrupted = False
            before(what)

        sys.unraisablehook = hook


GPU_ABORTED = (
    "the work on this rank's GPU was aborted, because the other ranks do not join its collective"
)
GPU_ABORTED_CELL_CONTINUES = (
    "the work on the GPU of rank {rank} was aborted, because the other ranks do not join its "
    "collective: further results of the cell on this rank are invalid. The cell was not ended, "
    "because it has its own SIGINT handler"
)
NAMES_LOST_BY_RESTART = (
    "rank {rank} was restarted and runs only this cell: names defined in earlier cells do not "
    "exist there, so this cell must define everything it needs"
)
