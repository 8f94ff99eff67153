"""The course's own magics: `%course 3` begins a lesson, `%%check ring.1` checks a cell."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display as show

from rankroom import display
from rankroom.course import progress, quiz, trial
from rankroom.course.exercise import find
from rankroom.course.lessons import LESSONS, lesson
from rankroom.course.requirements import unmet_needs
from rankroom.course.solutions import catch_up, solutions_until
from rankroom.errors import UsageError
from rankroom.notebook import course_ranks
from rankroom.notebook.options import Options
from rankroom.notebook.output import CellOutput
from rankroom.notebook.plain_errors import plain
from rankroom.notebook.stop_button import deferred
from rankroom.run.run import Run


@magics_class
class CourseMagics(Magics):
    """The magics of lessons, beside those of every notebook, which are `every`."""

    def __init__(self, shell: Any, every: Any) -> None:
        super().__init__(shell)
        self.every = every
        self._scripts = Scripts()

    @line_magic  # type: ignore[untyped-decorator]
    @plain
    def course(self, line: str) -> None:
        """%course [LESSON] [--ranks N] [--site NAME] [--catch-up [EXERCISE]] [--quiz before|after]

        Begins a lesson on this notebook's ranks, or on those of the course, which all its lessons
        share: starts them if they are not running, and says what the lesson needs that is missing
        here. Without a number, lists the lessons and how many of their exercises you have passed.
        With --catch-up, puts the solutions of the lesson's exercises on the ranks, up to EXERCISE
        if that is given, and what these build on; your variables stay. With --quiz, asks some
        questions before or after a workshop, which need no ranks.
        """
        options = Options("%course")
        options.add_argument("lesson", nargs="?", type=int, metavar="LESSON")
        options.add_argument("--ranks", type=int, metavar="N")
        options.add_argument("--site", metavar="NAME")
        options.add_argument("--catch-up", nargs="?", const="", metavar="EXERCISE")
        options.add_argument("--quiz", choices=quiz.WHEN, metavar="WHEN")
        chosen = options.read(line)
        if chosen.quiz:
            questions = course_ranks.quiz_questions()
            words = quiz.questions_markdown(chosen.quiz, questions)
            show({"text/markdown": words, "text/plain": words}, raw=True)
            self.shell.set_next_input(quiz.answer_cell(chosen.quiz, questions))
            return
        if chosen.lesson is None:
            if chosen.catch_up is not None:
                raise UsageError(LESSON_NEEDED)
            print(overview())
            return
        here = lesson(chosen.lesson)
        # First: an unknown exercise is refused before ranks start.
        solved = [] if chosen.catch_up is None else solutions_until(here, chosen.catch_up)
        progress.begin(here.number)
        self.every.lesson_refusal = lambda: ""
        cluster, is_new = course_ranks.ready(here, chosen.ranks, chosen.site)
        if why := unmet_needs(cluster, here):
            # The lesson's cells then say the same, instead of each failing in its own way.
            self.every.lesson_refusal = course_ranks.refusal(cluster, why)
            raise UsageError(why)
        if here.fresh and not is_new and chosen.catch_up is None:
            cluster = course_ranks.restarted(here)
        print(f"{READY.format(lesson=here.name, cluster=cluster.describe())}\n{RANKS_STAY}")
        for line in catch_up(cluster, solved):
            print(line)

    @cell_magic("check")  # type: ignore[untyped-decorator]
    @plain
    def check_cell(self, line: str, cell: str) -> None:
        """%%check EXERCISE: run the cell on all ranks, and check whether it does what is asked.

        The cell of an exercise about a script, such as capstone.4, is written to that script's
        file, and checked as a script; another script of that name is kept beside it. `quiz.before`
        and `quiz.after` mark the answers to `%course --quiz`, without ranks.
        """
        if not line.strip():
            raise UsageError("%%check needs the name of an exercise, like ring.1")
        if when := quiz.named(line.strip()):
            marked = quiz.answer(when, cell, course_ranks.quiz_questions())
            show(marked.bundle(), raw=True)
            return
        exercise = find(line.strip())
        if why := self.every.lesson_refusal():
            raise UsageError(why)
        code = self.every.checked(cell)
        if exercise.script and (kept := self._scripts.write(Path(exercise.script), cell)):
            print(SCRIPT_KEPT.format(script=exercise.script, kept=kept.name))
        count = self.shell.execution_count
        with deferred() as pressed:
            run = trial.start(exercise, cell, count, code, lambda: bool(pressed))
            output = CellOutput(self.shell, run.id)
            output.show(display.running_bundle(run.info))

        def over(run: Run) -> None:
            output.show(display.bundle(run.info, trial.ranks().store))

        verdict = trial.follow(exercise, run, over, bool(pressed))
        if exercise.script and verdict.passed:
            self._scripts.passed(Path(exercise.script))
        show(verdict.bundle(), raw=True)


class Scripts:
    """The script files that cells of exercises are written to.

    A draft that this notebook has written itself is replaced by the next one. Any other file is
    kept, such as a script that has passed, or one that was written before the notebook's reset.
    """

    def __init__(self) -> None:
        self._drafts: dict[Path, str] = {}

    def write(self, script: Path, cell: str) -> Path | None:
        """Write the cell to the file `script`. Return the new name of the file that was there, if
        that is kept.

        Raises UsageError if the file cannot be written.
        """
        path, kept = script.absolute(), None
        try:
            before = path.read_text("utf-8", "replace") if path.exists() else None
            if before == cell:
                return None
            if before not in (None, self._drafts.get(path)):
                when = time.strftime("%Y-%m-%d %H.%M.%S")
                kept = path.with_name(f"{path.stem} (before check {when}){path.suffix}")
                path.rename(kept)
            path.write_text(cell, "utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write the cell to {script} in {path.parent}: {error}"
            ) from None
        self._drafts[path] = cell
        return kept

    def passed(self, script: Path) -> None:
        """Note that what was written to `script` last is a solution, no longer a draft."""
        self._drafts.pop(script.absolute(), None)


def overview() -> str:
    """Return the lessons as a table, with how many exercises of each the reader has passed."""
    from rankroom.course.exercise_list import exercises_of

    passed = progress.read().passed
    lines = []
    for each in LESSONS:
        there = exercises_of(each)
        done = sum(name in passed for name in there)
        count = f"{done} of {len(there)} exercises" if there else ""
        lines.append(f"{each.name:<36} {each.minutes:>3} min  {count}".rstrip())
    return "\n".join(lines)


READY = "lesson {lesson}: everything it needs is available ({cluster})"
RANKS_STAY = "these ranks keep running for later lessons; `%cluster stop` ends them"
SCRIPT_KEPT = "{script} was another script: it is kept as {kept}"
LESSON_NEEDED = "%course --catch-up needs the lesson's number, as in `%course 3 --catch-up`"
