"""The magics: thin words over Cluster and Run, in the notebook's kernel."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

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
from rankroom.display.words import how
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

AT_ONCE_S = 0.02  # shorter runs need no picture of themselves running
INTERRUPT_S = 5.0  # after an interrupt, until the notebook gets its prompt back all the same
STOP_S = 20.0  # for ranks to let go after --timeout, unless ■ is pressed again
FOLLOW_S = 1.0  # between two looks at whether a run moves on
ONLY_THE_NOTEBOOKS = 1_000_000  # a depth that no stack has: `$name` is never a variable of ours
_ON_RANKS = re.compile(r"--(?!breakpoint)")
_OWN = (
    "%cluster", "%course", "%ranks", "%runs", "%distributed", "%debug --rank", "%load_ext",
    "%reload_ext", "%unload_ext",
)  # fmt: skip


@magics_class
class RankroomMagics(Magics):
    """Everything `%load_ext rankroom` brings."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        debug = shell.find_line_magic("debug")
        before = getattr(debug, "__self__", None)  # the magics of a load before this one
        self._own_debug: Any = before._own_debug if isinstance(before, RankroomMagics) else debug
        self.every_cell = False
        # Why the lesson of this notebook cannot be walked on these ranks; empty if it can.
        self.refuses: Callable[[], str] = lambda: ""

    # -- cells

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    @plain
    def distributed(self, line: str, cell: str | None = None) -> None:
        """%%distributed [--ranks 0,2-3] [--timeout S] [--detach] [--profile] [--quiet]
        [--compare RUN] [-o NAME]

        Runs the cell on every rank. With --profile, PyTorch's and TensorFlow's profilers run with
        it, for this cell only: operators and GPU kernels join what its timeline shows. With
        --compare, the metrics of an earlier run are shown beside those of this one: RUN is its id
        or a part of it, the NAME it was kept as, or `last`; several have commas. As a line,
        `%distributed EXPR` shows an expression's value on every rank, and `%distributed on|off`
        makes every cell distributed, or none.
        """
        if cell is not None:
            # In an option, `{name}` is the notebook's; in an expression, it is the ranks' own.
            self._run(cell, self.shell.var_expand(line, ONLY_THE_NOTEBOOKS) if line else "")
        elif line.strip() in ("on", "off"):
            self.every_cell = line.strip() == "on"
            print(
                "every cell runs on all ranks; %%local keeps one here"
                if self.every_cell
                else "cells run here again"
            )
        elif line.strip():
            self._run_here(line)
        else:
            raise UsageError("%distributed needs an expression, or on|off")

    @cell_magic  # type: ignore[untyped-decorator]
    def local(self, line: str, cell: str) -> None:
        """%%local: run this cell in the notebook's own kernel, while `%distributed on`."""
        # A cell of a notebook is rewritten before it gets here (`EveryCell`).
        with self.cells_stay():
            self.shell.run_cell(cell).raise_error()

    @contextlib.contextmanager
    def cells_stay(self) -> Iterator[None]:
        """What is run or rewritten meanwhile is not for the ranks."""
        every, self.every_cell = self.every_cell, False
        try:
            yield
        finally:
            self.every_cell = every

    def checked(self, source: str) -> str:
        """The cell as plain Python. Raises CellError if it does not compile."""
        with self.cells_stay():
            return check_syntax(self.shell, source, ranks_have_another_python)

    @cell_magic  # type: ignore[untyped-decorator]
    @plain
    def scaling(self, line: str, cell: str) -> None:
        """%%scaling [1,2,4] [--weak] [--repeat 3] [--no-warm-up] [-o NAME]

        Runs the cell on 1, 2 and 4 ranks, as if the cluster had no others, and shows times,
        speed-up, efficiency and where the time went. With --weak, the work is taken to grow with
        the ranks.
        """
        # NumPy comes with it.
        from rankroom.analysis.scaling import Scaling, bundle, counts
        from rankroom.display.scaling_picture import picture
        from rankroom.notebook.scaling_magic import Plan, scale

        chosen = self._read(scaling_options(), line)
        if chosen.repeat < 1:
            raise UsageError(f"--repeat {chosen.repeat}: once at least")
        cluster = the_cluster()
        try:
            plan = Plan(counts(chosen.ranks, cluster.size), chosen.repeat, int(not chosen.cold))
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
            # Beside the table rather than in its place, where both can be shown.
            plot = {
                VEGA: outcome.scaling.chart(),
                "image/svg+xml": picture(outcome.scaling),
                "text/plain": "(a plot of it)",
            }
            show(plot, raw=True)
        if (run := outcome.broken) is not None:
            CellOutput(self.shell, run.id).show(display.bundle(run.info, cluster.store))
            self._raise(run, None)
        if outcome.interrupted:
            raise RunFailed("interrupted; the ranks' variables are kept")

    def _run_here(self, source: str, line: str = "") -> None:
        """Run it from within a cell of the notebook's own: what that has printed stands first."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._run(source, line)

    def _run(self, source: str, line: str) -> None:
        chosen = self._read(cell_options(), line)
        if chosen.timeout is not None and not chosen.timeout > 0:  # nor is nan
            raise UsageError(f"--timeout {chosen.timeout:g}: more than 0 seconds")
        detach = chosen.detach and not in_batch_job()  # ranks end with the job
        if detach and chosen.timeout is not None:
            raise UsageError(UNTIMED)
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
            # A run that is over at once is shown once.
            if not chosen.quiet and (detach or not run.wait(AT_ONCE_S)):
                output.show(display.running_bundle(run.info))
        if detach:
            if pressed:
                _interrupt(run)
            return
        shown = None if chosen.quiet else output
        timed_out = self._follow(run, chosen.timeout, shown, bool(pressed))
        with deferred() as pressed:  # what is shown last stays in the notebook
            if not chosen.quiet or run.state != "done":
                output.show(display.bundle(run.info, cluster.store))
        self._raise(run, chosen.timeout if timed_out else None)
        if pressed:
            raise RunFailed(TOO_LATE)

    def _read(self, options: Options, line: str) -> Any:
        """What is asked of a cell on ranks, if it can run here."""
        chosen = options.read(line)
        if chosen.output and not chosen.output.isidentifier():
            raise UsageError(f"-o {chosen.output}: not a variable name")
        if why := self.refuses():
            raise UsageError(why)
        return chosen

    def _follow(
        self, run: Run, timeout: float | None, output: CellOutput | None, pressed: bool
    ) -> bool:
        """Wait for the run; an interrupt of the notebook becomes one of the ranks. Whether it had
        to be ended after `timeout` seconds.

        Where there is no live view, `output` tells that the run is stuck, that it moves on, and
        what is noted of it.
        """
        left = float("inf") if timeout is None else timeout
        told = (False, False, len(run.info.notes))
        try:
            if pressed:
                raise KeyboardInterrupt
            while left > 0:
                looked = time.monotonic()
                if run.wait(min(FOLLOW_S, left)):
                    return False
                if not run.prompts:  # nobody is late who waits for an answer
                    left -= time.monotonic() - looked
                now = (run.info.hang is not None, bool(run.prompts), len(run.info.notes))
                if output is not None and now != told:
                    told = now
                    output.show(display.running_bundle(run.info))
            _interrupt(run)
            run.wait(STOP_S)
        except KeyboardInterrupt:
            # Pressed again: the notebook gets its prompt back, and a line names what still runs.
            with contextlib.suppress(KeyboardInterrupt):
                _interrupt(run)
                run.wait(INTERRUPT_S)
        return left <= 0

    def _raise(self, run: Run, timeout: float | None) -> None:
        """Make the notebook's cell end as the run did, so that "run all" stops where it should; it
        was ended after `timeout` seconds if that is given."""
        if run.state == "lost":
            raise RunFailed(how(run.info))
        if run.running:
            ranks, it = format_ranks(run.running), "them" if len(run.running) > 1 else "it"
            patience = INTERRUPT_S if timeout is None else STOP_S
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
        """%debug --ranks 3: look around where the last cell that failed on rank 3 did.

        Without ranks it is IPython's own, for the notebook's kernel.
        """
        if not _ON_RANKS.match(line.strip()):
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

        Pushing copies the notebook's variables to the ranks. Pulling makes each NAME in the
        notebook a dictionary: rank to value. `who` shows what the ranks' variables are, and where
        ranks have different values; these stay where they are. Without NAMEs it shows the ranks'
        memory as well. `debug 1` has JupyterLab's own debugger show rank 1.
        """
        ranks_magic.do(self.shell, line)

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def runs(self, line: str) -> None:
        """%runs [ID]: the latest runs, or the view of one (`last`, or part of its id)."""
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


def _interrupt(run: Run) -> None:
    """Interrupt its ranks, or say why that cannot be; how the run ends is shown in either case."""
    try:
        run.interrupt()
    except RankroomError as error:
        print(error)


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
    shell.input_transformers_cleanup.append(EveryCell(magics))
    shell.Completer.custom_matchers.append(RankMatcher(magics))


def unload_ipython_extension(shell: Any) -> None:
    """Take back what an earlier load has changed of the shell; its magics are replaced."""
    for changed in (shell.input_transformers_cleanup, shell.Completer.custom_matchers):
        changed[:] = [each for each in changed if not isinstance(each, EveryCell | RankMatcher)]


class EveryCell:
    """IPython's transformation of a cell while `%distributed on`: it gets its magic."""

    # So that IPython leaves it out as it looks whether a line is complete, and Enter runs it: a
    # cell magic waits for an empty line.
    has_side_effects = True

    def __init__(self, magics: RankroomMagics) -> None:
        self._magics = magics

    def __call__(self, lines: list[str]) -> list[str]:
        code = (each.lstrip() for each in lines)
        first = next((each for each in code if each and not each.startswith("#")), "")
        if not self._magics.every_cell or not first or first.startswith(_OWN):
            return lines
        if is_silent(self._magics.shell):
            return lines
        if lines[0].startswith("%%"):
            # Without its magic, a cell of the notebook's own shows its errors once.
            return lines[1:] if lines[0].split()[0] == "%%local" else lines
        return ["%%distributed\n", *lines]


NO_TRACEBACK = "nothing to debug on {ranks}: no cell has failed there"
TOO_LATE = "interrupted when the run was over"
UNTIMED = "--timeout is for cells that the notebook waits for: leave out --detach or --timeout"
UNATTENDED = "%debug passed over: no one can answer here"
