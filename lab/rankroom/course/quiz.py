"""The quiz before and after a workshop, which shows what was learned, question by question.

It needs no ranks. A workshop's quiz asks about what its lessons teach. The first answers count.
They are stored with the results of the exercises, as `before.3` and `after.3` for the third of all
questions, and are part of what a teacher collects.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from typing import Literal

from rankroom.course import progress
from rankroom.course.progress import Progress
from rankroom.course.quiz_questions import LETTERS, QUESTIONS, Form, Question
from rankroom.errors import UsageError
from rankroom.record.model import Json

When = Literal["before", "after"]
WHEN: tuple[When, ...] = ("before", "after")
UNKNOWN = "?"
MIN_QUESTIONS = 3  # questions of a quiz
_ANSWER = re.compile(rf"\s*(\d+)\s*[.:)]?\s*([{LETTERS}{UNKNOWN}])\s*", re.IGNORECASE)


def named(name: str) -> When | None:
    """Return the quiz that `quiz.before` or `quiz.after` names; None for any other name."""
    return next((when for when in WHEN if name == f"quiz.{when}"), None)


def is_quiz(exercise: str) -> bool:
    """Return whether a name in a learner's progress is that of a quiz question."""
    return exercise.partition(".")[0] in WHEN


def form(question: Question, when: When) -> Form:
    """Return the form in which a question is asked before or after the workshop."""
    return question.before if when == "before" else question.after


def questions_about(lessons: Collection[int]) -> Sequence[Question]:
    """Return the questions about these lessons; all questions if there are fewer than
    MIN_QUESTIONS."""
    found = [each for each in QUESTIONS if each.lesson in lessons]
    return found if len(found) >= MIN_QUESTIONS else QUESTIONS


def questions_markdown(when: When, questions: Sequence[Question] = QUESTIONS) -> str:
    """Return the questions as Markdown."""
    parts = [f"**{len(questions)} questions.** {HOW}"]
    for number, each in enumerate(questions, 1):
        answers = zip(LETTERS, form(each, when).shown, strict=True)
        lines = [f"    - **{letter}** {answer}" for letter, answer in answers]
        parts.append("\n".join([f"{number}. {form(each, when).text}", *lines]))
    return "\n\n".join(parts)


def answer_cell(when: When, questions: Sequence[Question] = QUESTIONS) -> str:
    """Return the source of the cell for the answers."""
    lines = [f"{number} {UNKNOWN}" for number in range(1, len(questions) + 1)]
    return "\n".join([f"%%check quiz.{when}", *lines])


class QuizResult:
    """The result of marking the answers, for the notebook."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def __repr__(self) -> str:
        return "\n".join(self.words)

    def bundle(self) -> Json:
        """Return the MIME bundle that the notebook displays."""
        return {"text/html": f"<p>{'<br>'.join(map(html.escape, self.words))}</p>",
                "text/plain": repr(self)}  # fmt: skip


def answer(when: When, text: str, questions: Sequence[Question] = QUESTIONS) -> QuizResult:
    """Mark a completed sheet, and store the result. Raises UsageError if the sheet is untouched or
    cannot be read, or if this quiz was taken before."""
    done = progress.read()
    if (before := score(done, when)) is not None:
        raise UsageError(DONE.format(when=when, right=before, of=size(done, when)))
    given = read(text, len(questions))
    if {*given.values()} == {UNKNOWN}:
        raise UsageError(UNTOUCHED)
    right = [form(each, when).right == given[n] for n, each in enumerate(questions, 1)]
    names = [f"{when}.{QUESTIONS.index(each) + 1}" for each in questions]
    why = progress.note_all(dict(zip(names, right, strict=True)))
    words = [f"quiz {when} the workshop: {sum(right)} of {len(questions)} right"]
    if why:
        words.append(NOT_KEPT.format(why=why))
    if when == "before":
        return QuizResult([*words, LATER])
    if (first := score(progress.read(), "before")) is not None:
        words[0] += f"; before it: {first}"
        if (of := size(progress.read(), "before")) != len(questions):  # in another workshop
            words[0] += f" of {of}"
    for number, each in enumerate(questions, 1):
        if not right[number - 1]:
            there = (
                f"{form(each, when).right}: {form(each, when).answers[0]} (lesson {each.lesson})"
            )
            words.append(f"{number} is {there}")
    return QuizResult(words)


def read(text: str, last: int = len(QUESTIONS)) -> dict[int, str]:
    """Return the letter for each question's number, 1 to `last`. Raises UsageError for a line that
    is not an answer, and for a question that is answered twice or not at all."""
    given: dict[int, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _ANSWER.fullmatch(line)
        if found is None or not 1 <= int(found[1]) <= last:
            raise UsageError(NO_ANSWER.format(line=line.strip(), last=last))
        if int(found[1]) in given:
            raise UsageError(f"question {found[1]} is answered twice")
        given[int(found[1])] = found[2].lower()
    if missing := [str(n) for n in range(1, last + 1) if n not in given]:
        raise UsageError(MISSING.format(numbers=", ".join(missing)))
    return given


def score(of: Progress, when: When) -> int | None:
    """Return how many answers were right; None if the quiz was not taken."""
    names = _answered(of, when)
    return sum(name in of.passed for name in names) if names else None


def size(of: Progress, when: When) -> int:
    """Return how many questions a learner's quiz had; 0 if it was not taken."""
    return len(_answered(of, when))


def _answered(of: Progress, when: When) -> list[str]:
    return [name for name in of.tries if name.startswith(f"{when}.")]


def class_results(everybody: Sequence[Progress]) -> list[str]:
    """Return lines for a teacher: a class's results before and after, in all and by question."""
    scores = {when: [n for each in everybody if (n := score(each, when)) is not None]
              for when in WHEN}  # fmt: skip
    if not any(scores.values()):
        return []
    both = [(before, after) for each in everybody
            if (before := score(each, "before")) is not None
            and (after := score(each, "after")) is not None]  # fmt: skip
    put = [
        number
        for number in range(1, len(QUESTIONS) + 1)
        if any(f"{when}.{number}" in each.tries for each in everybody for when in WHEN)
    ]
    lines = [f"quiz of {len(put)} questions: "
             + ", ".join(f"{len(scores[when])} took it {when}" for when in WHEN)]  # fmt: skip
    if both:
        first, then = (sum(column) / len(both) for column in zip(*both, strict=True))
        lines.append(f"of {len(both)} who took both: {first:.1f} right before, {then:.1f} after")
    lines += ["", f"{'question':<28}  before  after"]
    for place, number in enumerate(put, 1):
        shares = [_share(everybody, when, number) for when in WHEN]
        lines.append(
            f"{place:>2} {QUESTIONS[number - 1].topic:<25}  {shares[0]:>6}  {shares[1]:>5}"
        )
    return lines


def _share(everybody: Sequence[Progress], when: When, number: int) -> str:
    name = f"{when}.{number}"
    tried = [each for each in everybody if name in each.tries]
    if not tried:
        return "-"
    return f"{100 * sum(name in each.passed for each in tried) / len(tried):.0f} %"


HOW = (
    "Write the letter of an answer after each number in the cell below, and run it. `?` is for "
    "what you do not know: a guess tells your teacher nothing. Your answers are marked once."
)
LATER = "The workshop will show which ones, and why. At its end you are asked the same."
DONE = (
    "you have taken the quiz {when} the workshop already: {right} of {of} right. The first answers "
    "count"
)
NOT_KEPT = "your answers could not be stored, so your teacher does not get them: {why}"
UNTOUCHED = "you have not answered anything yet: replace a `?` by the letter of an answer"
NO_ANSWER = (
    "{line!r} is not an answer: write a question's number, 1 to {last}, and a letter, like: 3 b"
)
MISSING = "no answer to {numbers} yet: write ? for what you do not know"
