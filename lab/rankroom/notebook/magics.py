"""The magics: a thin layer over Cluster and Run, in the notebook's kernel."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)
from IPython.display import display as show

from rankroom import display
from rankroom.analysis.chart import VEGA
from rankroom.batch.batch_folder import in_batch_job
from rankroom.display.text import clean
from rankroom.display.words import state_words
from rankroom.errors import RankroomError, RunFailed, UsageError
from rankroom.notebook import ranks_magic
from rankroom.notebook.attended import is_attended, is_silent
from rankroom.notebook.cell_source import check_syntax, notes
from rankroom.notebook.cluster_magic import ACTIONS, ranks_have_another_python, the_cluster
from rankroom.notebook.complete import RankMatcher
from rankroom.notebook.course_magics import CourseMagics
from rankroom.notebook.options import Options
from rankroom.notebook.output import CellOutput
from rankroom.notebook.plain_errors import plain
from rankroom.notebook.stop_button import deferred
from rankroom.rank.debugging.debugger_hooks import has_traceback
from rankroom.record.compared import compared
from rankroom.record.store import Store
from rankroom.run.run import Run
from rankroom.text.rank_ranges import format_ranks, name_ranks, parse_ranks

SHOW_RUNNING_AFTER_S = 0.02  # a shorter run is not shown as running first
INTERRUPT_TIMEOUT_S = 5.0  # after an interrupt, until the notebook gets its prompt back in any case
STOP_TIMEOUT_S = 20.0  # for ranks to stop after --timeout, unless ■ is pressed again
POLL_INTERVAL_S = 1.0  # poll interval for whether a run is stuck, asks something, or has notes
BEYOND_THE_STACK = 1_000_000  # deeper than any stack: `$name` never finds our own variables
_DEBUG_ON_RANKS = re.compile(r"--(?!breakpoint)")
_KERNEL_MAGICS = (
    "%cluster", "%course", "%ranks", "%runs", "%distributed", "%debug --rank", "%load_ext",
    "%reload_ext", "%unload_ext",
)  # fmt: skip
# They transform the code that they measure once more: in the kernel, each of its many calls would
# be a run.
_REPEATED = ("%%timeit", "%%prun")


class Followed(NamedTuple):
    """What happened while a run was followed: its time was up, or the stop button was pressed,
    `too_late` if the run was over by then."""

    timed_out: bool = False
    was_pressed: bool = False
    too_late: bool = False


@magics_class
class RankroomMagics(Magics):
    """The magics that `%load_ext rankroom` adds, apart from those of the course."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        debug = shell.find_line_magic("debug")
        before = getattr(debug, "__self__", None)  # the magics of an earlier load
        self._own_debug: Any = before._own_debug if isinstance(before, RankroomMagics) else debug
        self.every_cell = False
        # Returns why this notebook's lesson cannot run on these ranks; empty if it can.
        self.lesson_refusal: Callable[[], str] = lambda: ""

    # -- cells

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    @plain
    def distributed(self, line: str, cell: str | None = None) -> None:
        """%%distributed [--ranks 0,2-3] [--timeout S] [--detach] [--profile] [--quiet]
        [--compare RUN] [-o NAME]

        Runs the cell on every rank. With --quiet, a run is shown only if it does not succeed. With
        --profile, PyTorch's and TensorFlow's profilers run with it, for this cell only, and its
        timeline also shows operators and GPU kernels. With --compare, the metrics of an earlier run
        are shown beside those of this one: RUN is its id (or the beginning or end of it), the NAME
        it was kept as, or `last`; separate several by commas. As a line, `%distributed EXPR` shows
        an expression's value on every rank, and `%distributed on|off` makes every cell distributed,
        or none.
        """
        if cell is not None:
            # In an option, `{name}` is the notebook's variable; an expression is left to the ranks.
            self._run(cell, self.shell.var_expand(line, BEYOND_THE_STACK) if line else "")
        elif line.strip() in ("on", "off"):
            self.every_cell = line.strip() == "on"
            print(
                "every cell now runs on all ranks; %%local runs one in the notebook's kernel"
                if self.every_cell
                else "cells run in the notebook's kernel again"
            )
        elif line.strip():
            self._run_here(line)
        else:
            raise UsageError("%distributed needs an expression, or on|off")

    @cell_magic  # type: ignore[untyped-decorator]
    def local(self, line: str, cell: str) -> None:
        """%%local: run this cell in the notebook's own kernel, while `%distributed on`."""
        # `DistributeEveryCell` removes it from a cell that is typed; this is for calls of it.
        with self.cells_stay():
            self.shell.run_cell(cell).raise_error()

    @contextlib.contextmanager
    def cells_stay(self) -> Iterator[None]:
        """Inside the block, cells run in the notebook's kernel, not on the ranks."""
        every, self.every_cell = self.every_cell, False
        try:
            yield
        finally:
            self.every_cell = every

    def checked(self, source: str) -> str:
        """Return the cell as plain Python. Raises CellError if it does not compile."""
        with self.cells_stay():
            return check_syntax(self.shell, source, ranks_have_another_python)

    @cell_magic  # type: ignore[untyped-decorator]
    @plain
    def scaling(self, line: str, cell: str) -> None:
        """%%scaling [1,2,4] [--weak] [--repeat 3] [--no-warm-up] [-o NAME]

        Runs the cell on 1, 2 and 4 ranks, as if the cluster had no others, and shows times,
        speed-up, efficiency and where the time went. With --weak, the work is assumed to grow with
        the number of ranks.
        """
        # Imported late, as they load NumPy.
        from rankroom.analysis.scaling import Scaling, bundle, parse_rank_counts
        from rankroom.display.scaling_picture import picture
        from rankroom.notebook.scaling_magic import Plan, scale

        chosen = self._read(scaling_options(), line)
        if chosen.repeat < 1:
            raise UsageError(f"--repeat {chosen.repeat}: must be at least 1")
        cluster = the_cluster()
        try:
            plan = Plan(
                parse_rank_counts(chosen.ranks, cluster.size), chosen.repeat, int(not chosen.cold)
            )
        except ValueError as error:
            raise UsageError(f"%%scaling: {error}") from None
        self.checked(cell)
        output = CellOutput(self.shell, f"scaling-{time.time_ns()}")

        def tell(scaling: Scaling, words: str) -> None:
            output.show(dict(bundle(scaling, [f"… {words}"])))

        outcome = scale(
            cluster, cell, plan, chosen.weak,
            lambda run, pressed: self._follow(run, None, None, pressed),
            tell, self.shell.execution_count,
        )  # fmt: skip
        if chosen.output:
            self.shell.user_ns[chosen.output] = outcome.scaling
        output.show(dict(bundle(outcome.scaling, outcome.notes)))
        if outcome.scaling.sizes:
            # A display of its own: within one, a front end would show either plot or table.
            plot = {
                VEGA: outcome.scaling.chart(),
                "image/svg+xml": picture(outcome.scaling),
                "text/plain": "(a plot of the scaling)",
            }
            show(plot, raw=True)
        if (run := outcome.broken) is not None:
            CellOutput(self.shell, run.id).show(display.bundle(run.info, cluster.store))
            self._raise(run, None)
        if outcome.error is not None:
            raise outcome.error
        if outcome.interrupted:
            raise RunFailed("interrupted; the ranks' variables are kept")

    def _run_here(self, source: str, line: str = "") -> None:
        """Run `source` on the ranks from within a notebook's own cell, below what that printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._run(source, line)

    def _run(self, source: str, line: str) -> None:
        chosen = self._read(cell_options(), line)
        if chosen.timeout is not None and not chosen.timeout > 0:  # also true for nan
            raise UsageError(f"--timeout {chosen.timeout:g}: must be more than 0 seconds")
        detach = chosen.detach and not in_batch_job()  # whose ranks end with it
        if detach and chosen.timeout is not None:
            raise UsageError(TIMEOUT_NEEDS_WAIT)
        cluster = the_cluster()
        ranks = None if chosen.ranks is None else parse_ranks(chosen.ranks, cluster.size)
        said = notes(self.checked(source), ranks, cluster.size)
        others, missing = compared(cluster.store, chosen.compare) if chosen.compare else ([], [])
        with deferred() as pressed:
            run = cluster.run(
                source, ranks, chosen.output, self.shell.execution_count, [*said, *missing],
                chosen.profile, interactive=not chosen.quiet and is_attended(self.shell),
                compare=others, is_cancelled=lambda: bool(pressed),
            )  # fmt: skip
            if chosen.output:
                self.shell.user_ns[chosen.output] = run
            output = CellOutput(self.shell, run.id)
            # A run that ends at once is shown only once.
            if not chosen.quiet and (detach or not run.wait(SHOW_RUNNING_AFTER_S)):
                output.show(display.running_bundle(run.info))
        if detach:
            if pressed:
                _interrupt(run)
            return
        shown = None if chosen.quiet else output
        followed = self._follow(run, chosen.timeout, shown, bool(pressed))
        with deferred() as pressed:  # so that the final view reaches the notebook
            if not chosen.quiet or run.state != "done":
                output.show(display.bundle(run.info, cluster.store))
        self._raise(run, chosen.timeout if followed.timed_out else None)
        if pressed or followed.too_late:
            raise RunFailed(INTERRUPTED_AFTER_END)

    def _read(self, options: Options, line: str) -> Any:
        """Return the options of a cell for the ranks. Raises UsageError, also if the notebook's
        lesson cannot run on these ranks."""
        chosen = options.read(line)
        if chosen.output and not chosen.output.isidentifier():
            raise UsageError(f"-o {chosen.output}: not a variable name")
        if why := self.lesson_refusal():
            raise UsageError(why)
        return chosen

    def _follow(
        self, run: Run, timeout: float | None, output: CellOutput | None, pressed: bool
    ) -> Followed:
        """Wait for the run, and interrupt its ranks if the notebook is interrupted, or after
        `timeout` seconds.

        For front ends without a live view, `output` is updated when the run gets stuck or goes on,
        when ranks begin or stop asking something, and when the run gets a note.
        """
        left = float("inf") if timeout is None else timeout
        told = (False, False, len(run.info.notes))
        was_pressed = too_late = False
        try:
            if pressed:
                raise KeyboardInterrupt
            while left > 0:
                looked = time.monotonic()
                if run.wait(min(POLL_INTERVAL_S, left)):
                    return Followed()
                if not run.prompts:  # the wait for an answer does not count
                    left -= time.monotonic() - looked
                now = (run.info.hang is not None, bool(run.prompts), len(run.info.notes))
                if output is not None and now != told:
                    told = now
                    output.show(display.running_bundle(run.info))
            _interrupt(run)
            run.wait(STOP_TIMEOUT_S)
        except KeyboardInterrupt:
            # If ■ is pressed again, the notebook gets its prompt back, and `_raise` names the ranks
            # that still run.
            was_pressed = True
            with contextlib.suppress(KeyboardInterrupt):
                too_late = not _interrupt(run)
                run.wait(INTERRUPT_TIMEOUT_S)
        return Followed(left <= 0, was_pressed, too_late)

    def _raise(self, run: Run, timeout: float | None) -> None:
        """Raise RunFailed unless the run succeeded, so that the notebook's cell fails and "Run All"
        stops there. `timeout` is given if the run was stopped after that many seconds."""
        if run.state == "lost":
            raise RunFailed(state_words(run.info))
        if run.running:
            ranks, it = format_ranks(run.running), "them" if len(run.running) > 1 else "it"
            patience = INTERRUPT_TIMEOUT_S if timeout is None else STOP_TIMEOUT_S
            raise RunFailed(
                f"{name_ranks(run.running)} did not stop within {patience:.0f} s: "
                f"`%cluster restart --ranks {ranks}` ends {it}"
            )
        if timeout is not None and run.state == "interrupted":
            raise RunFailed(f"stopped after --timeout {timeout:g} s")
        if run.state == "interrupted":
            states = {rank.state for rank in run.info.ranks}
            ended = "interrupted" if "interrupted" in states else "released"
            raise RunFailed(f"{ended}; the ranks' variables are kept")
        if run.state == "failed" and run.info.failure is not None:
            failure = run.info.failure
            where = f" (cell line {failure.cell_line})" if failure.cell_line else ""
            ename = "" if failure.ename == "RankLost" else failure.ename
            what = clean(": ".join(part for part in (ename, failure.evalue) if part))
            raise RunFailed(f"rank {failure.rank} failed first{where}: {what[:500]}")

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def debug(self, line: str) -> None:
        """%debug --ranks 3: debug the last cell that failed on rank 3, at the line that failed.

        Without --ranks, it is IPython's own %debug, for the notebook's kernel.
        """
        if not _DEBUG_ON_RANKS.match(line.strip()):
            self._own_debug(line)
            return
        options = Options("%debug")
        options.add_argument("--ranks", "--rank", metavar="0,2-3", required=True)
        chosen = options.read(line)
        cluster = the_cluster()
        ranks = parse_ranks(chosen.ranks, cluster.size)
        found = {rank: cluster.apply(rank, has_traceback) for rank in ranks}
        if missing := [rank for rank in ranks if not found[rank]]:
            raise UsageError(NO_TRACEBACK.format(ranks=name_ranks(missing)))
        if not is_attended(self.shell):
            raise UsageError(UNATTENDED)
        self._run_here("%debug", f"--ranks {','.join(map(str, ranks))}")

    # -- clusters

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def cluster(self, line: str) -> None:
        """%cluster [start [--ranks N] [--name NAME] [--auto-restart] [--preload MODULE,…] |
        status | stop [NAME] | restart [--ranks 0,2-3] | resize N | attach [NAME] | interrupt |
        release | stacks [--ranks 0,2-3] | log]

        Without a subcommand, shows the cluster, as `status` does. `start --site NAME` submits a job
        for the ranks; its options are those of `rankroom cluster start`, and `--dry-run`.
        """
        word, rest = (*line.split(None, 1), "", "")[:2]
        word = word or "status"
        if word not in ACTIONS:
            raise UsageError(f"%cluster {word}: unknown; valid are {', '.join(ACTIONS)}")
        ACTIONS[word](rest)

    # -- variables and records

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def ranks(self, line: str) -> None:
        """%ranks push NAME… | pull NAME… | who [NAME…] [--ranks 0,2-3] | debug RANK|off

        `push` copies the notebook's variables to the ranks. `pull` makes each NAME in the notebook
        a dictionary: rank to value. `who` shows what the ranks' variables are, and where ranks have
        different values, without copying the values. Without NAMEs it shows the ranks' memory as
        well. `debug 1` makes JupyterLab's own debugger show rank 1.
        """
        ranks_magic.do(self.shell, line)

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def runs(self, line: str) -> None:
        """%runs [ID]: list the latest runs, or view the run ID, which may be `last`, or only the
        beginning or end of an id."""
        options = Options("%runs")
        options.add_argument("id", nargs="?", metavar="ID")
        wanted = options.read(line).id
        store = Store()
        if wanted is None:
            found = store.newest(20)
            print(display.runs_table(found) if found else f"no runs yet in {store.runs}")
            return
        run = store.load(store.find(wanted))
        show(display.bundle(run, store), raw=True)


def _interrupt(run: Run) -> bool:
    """Interrupt the run's ranks, or print why that is impossible; return False if the run was over.
    Callers show how it ends."""
    try:
        return run.interrupt()
    except RankroomError as error:
        print(error)
        return True


@functools.cache  # making a parser takes longer than sending a cell
def cell_options() -> Options:
    """The options of %%distributed."""
    options = Options("%%distributed")
    options.add_argument("--ranks", metavar="0,2-3")
    options.add_argument("--timeout", type=float, metavar="SECONDS")
    options.add_argument("--detach", action="store_true")
    options.add_argument("--profile", action="store_true")
    options.add_argument("--quiet", action="store_true")
    options.add_argument("--compare", action="append", metavar="RUN")
    options.add_argument("-o", "--output", metavar="NAME")
    return options


@functools.cache
def scaling_options() -> Options:
    """The options of %%scaling."""
    options = Options("%%scaling")
    options.add_argument("ranks", nargs="?", default="", metavar="1,2,4")
    options.add_argument("--weak", action="store_true")
    options.add_argument("--repeat", type=int, default=3, metavar="N")
    options.add_argument("--no-warm-up", dest="cold", action="store_true")
    options.add_argument("-o", "--output", metavar="NAME")
    return options


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, the `%distributed on` transformation and completion."""
    unload_ipython_extension(shell)
    magics = RankroomMagics(shell)
    shell.register_magics(magics)
    shell.register_magics(CourseMagics(shell, magics))
    shell.input_transformers_cleanup.append(DistributeEveryCell(magics))
    shell.Completer.custom_matchers.append(RankMatcher(magics))


def unload_ipython_extension(shell: Any) -> None:
    """Undo what an earlier load has changed in the shell, except for the magics, which the next
    load replaces."""
    for changed in (shell.input_transformers_cleanup, shell.Completer.custom_matchers):
        changed[:] = [
            each for each in changed if not isinstance(each, DistributeEveryCell | RankMatcher)
        ]


class DistributeEveryCell:
    """An IPython input transformer that adds `%%distributed` to cells while `%distributed on`."""

    # Makes IPython skip this when it checks whether input is complete, so that Enter runs a line: a
    # cell magic would wait for an empty line.
    has_side_effects = True

    def __init__(self, magics: RankroomMagics) -> None:
        self._magics = magics

    def __call__(self, lines: list[str]) -> list[str]:
        if lines and lines[0].split()[:1] == ["%%local"]:
            # Without it, the cell may await, and shows its errors only once.
            return lines[1:]
        code = (each.lstrip() for each in lines)
        first = next((each for each in code if each and not each.startswith("#")), "")
        if not self._magics.every_cell or not first or first.startswith(_KERNEL_MAGICS):
            return lines
        if is_silent(self._magics.shell):
            return lines
        if lines[0].startswith("%%") and not lines[0].startswith(_REPEATED):
            return lines
        return ["%%distributed\n", *lines]


NO_TRACEBACK = "nothing to debug on {ranks}: no cell has failed there"
INTERRUPTED_AFTER_END = "interrupted after the run had ended"
TIMEOUT_NEEDS_WAIT = (
    "--timeout is for cells that the notebook waits for: leave out --detach or --timeout"
)
UNATTENDED = "%debug was skipped: no one can answer here"
