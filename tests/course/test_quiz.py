"""The quiz before and after a workshop: marked once, without ranks; a class's gain."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernel import Kernel
from rankroom.cli import main
from rankroom.course import progress, quiz
from rankroom.course.exercise import all_exercises
from rankroom.course.lessons import LESSONS
from rankroom.course.quiz_questions import LETTERS, QUESTIONS, Question
from rankroom.errors import UsageError
from rankroom.workshop import workshop_folder
from rankroom.workshop.seat import take
from rankroom.workshop.seat_status import StatusReader
from rankroom.workshop.workshop_plan import Plan


def filled(when: quiz.When, right: int, questions: Sequence[Question] = QUESTIONS) -> str:
    """Return a sheet whose first `right` answers are right, and the others wrong."""
    letters = []
    for number, each in enumerate(questions):
        correct = quiz.form(each, when).right
        letters.append(correct if number < right else "ab"[correct == "a"])
    return "\n".join(f"{number} {letter}" for number, letter in enumerate(letters, 1))


def test_every_quiz_question_has_two_forms_with_distinct_answers():
    assert 8 <= len(QUESTIONS) <= 10
    lessons = {each.number for each in LESSONS}
    for each in QUESTIONS:
        assert each.lesson in lessons and each.before.text != each.after.text
        for form in (each.before, each.after):
            assert len({*form.answers}) == len(LETTERS)
            assert form.shown[LETTERS.index(form.right)] == form.answers[0]
    for when in quiz.WHEN:  # so that no letter is a good guess
        counts = Counter(quiz.form(each, when).right for each in QUESTIONS)
        assert {*counts} == {*LETTERS} and max(counts.values()) <= len(QUESTIONS) / 2
    assert not {*all_exercises()} & {f"{when}.{n}" for when in quiz.WHEN for n in range(20)}


def test_the_empty_answer_sheet_is_refused_until_it_has_an_answer(home: Path):
    magic, _, lines = quiz.answer_cell("before").partition("\n")
    assert magic == "%%check quiz.before"
    with pytest.raises(UsageError, match="you have not answered anything yet"):
        quiz.answer("before", lines)  # run by mistake, it would count as the first answers
    wrong = "ab"[QUESTIONS[0].before.right == "a"]
    assert "0 of 10 right" in repr(quiz.answer("before", lines.replace("1 ?", f"1 {wrong}", 1)))


def test_a_quiz_is_marked_once_and_the_gain_is_shown(home: Path):
    first = repr(quiz.answer("before", filled("before", 4)))
    assert "4 of 10 right" in first
    assert QUESTIONS[2].before.answers[0] not in first  # the same is asked again later
    with pytest.raises(UsageError, match=r"taken the quiz before the workshop already: 4 of 10"):
        quiz.answer("before", filled("before", 10))
    after = quiz.answer("after", filled("after", 9))
    assert "9 of 10 right; before it: 4" in after.words[0]
    assert after.words[1:] == [
        f"10 is {QUESTIONS[9].after.right}: {QUESTIONS[9].after.answers[0]} (lesson 18)"
    ]
    kept = progress.read()
    assert kept.passed.keys() >= {"before.1", "after.9"} and "before.5" not in kept.passed
    assert kept.tries["before.5"] == 1


def test_marks_that_cannot_be_stored_are_reported(home: Path):
    home.write_text("a file where the home should be")
    said = repr(quiz.answer("before", filled("before", 4)))
    assert "4 of 10 right" in said and f"your teacher does not get them: {home}" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 e", "'1 e' is not an answer"),
        ("11 a", "1 to 10"),
        ("x = 1", "is not an answer"),
        ("1 a\n1 b", "question 1 is answered twice"),
        ("1 a\n2 b\n", "no answer to 3, 4, 5, 6, 7, 8, 9, 10 yet"),
        ("", "no answer to 1, 2"),
    ],
)
def test_an_invalid_or_incomplete_answer_sheet_is_not_marked(home: Path, text: str, said: str):
    with pytest.raises(UsageError, match=said):
        quiz.answer("before", text)
    assert quiz.score(progress.read(), "before") is None


def test_answers_may_be_written_in_several_ways():
    text = "\n".join(f"  {n}{sign} {'B' if n % 2 else '?'}" for n, sign in enumerate(
        ["", ".", ":", ")", "", "", "", "", "", ""], 1))  # fmt: skip
    assert quiz.read(f"# mine\n\n{text}") == {n: "b" if n % 2 else "?" for n in range(1, 11)}


def test_a_teacher_sees_the_quiz_gain_of_a_class(home: Path, tmp_path: Path):
    class_folder = tmp_path / "class"
    class_folder.mkdir()
    for user, before, after in (("ada", 2, 8), ("grace", 4, 10), ("late", None, 6)):
        file = progress.file()
        file.unlink(missing_ok=True)
        if before is not None:
            quiz.answer("before", filled("before", before))
        quiz.answer("after", filled("after", after))
        data = json.loads(file.read_text()) | {"user": user}
        (class_folder / f"{user}.json").write_text(json.dumps(data))
    said = CliRunner().invoke(main, ["course", "progress", str(class_folder)]).output
    assert f"0 of {len(all_exercises())} passed" in said  # questions do not count as exercises
    assert "2 took it before, 3 took it after" in said
    assert "of 2 who took both: 3.0 right before, 9.0 after" in said
    assert f" 3 {'why ranks get stuck':<25}    50 %  100 %" in said
    assert f"10 {'what is written down':<25}     0 %   33 %" in said
    mine = CliRunner().invoke(main, ["course", "progress"]).output
    assert "quiz after: 6 of 10 right" in mine and "after.1" not in mine


def test_the_quiz_of_a_workshop_covers_only_its_lessons(home: Path):
    hour = quiz.questions_about([1, 4, 12])
    assert [each.lesson for each in hour] == [1, 4, 4, 12]
    assert (
        quiz.questions_about([]) == quiz.questions_about([7, 8, 1]) == QUESTIONS
    )  # too few questions match
    assert quiz.questions_about(range(21)) == [*QUESTIONS]
    shown = quiz.questions_markdown("before", hour)
    assert shown.startswith("**4 questions.**") and "4. In every step, ranks 0, 1 and 3" in shown
    assert "checkpoint" not in shown and "ring" not in shown.lower().replace("during", "")
    assert quiz.answer_cell("before", hour).splitlines()[1:] == ["1 ?", "2 ?", "3 ?", "4 ?"]
    with pytest.raises(UsageError, match="1 to 4"):
        quiz.answer("before", filled("before", 10), hour)
    assert "3 of 4 right" in repr(quiz.answer("before", filled("before", 3, hour), hour))
    with pytest.raises(UsageError, match="already: 3 of 4 right"):
        quiz.answer("before", filled("before", 3, hour), hour)
    after = quiz.answer("after", filled("after", 4, hour), hour)
    assert after.words == ["quiz after the workshop: 4 of 4 right; before it: 3"]
    mine = CliRunner().invoke(main, ["course", "progress"]).output
    assert "quiz before: 3 of 4 right" in mine
    # Stored by number among all questions, to compare workshops on different lessons.
    kept = progress.read()
    assert {*kept.tries} == {f"{when}.{number}" for when in quiz.WHEN for number in (1, 5, 6, 9)}
    lines = quiz.class_results([kept])
    assert lines[0] == "quiz of 4 questions: 1 took it before, 1 took it after"
    assert [line.split("  ")[0] for line in lines[4:]] == [
        " 1 variables of ranks", " 2 the same start everywhere", " 3 shares of the data",
        " 4 who is slow",
    ]  # fmt: skip


def test_an_earlier_quiz_of_another_length_is_shown_with_its_length(home: Path):
    quiz.answer("before", filled("before", 8))
    hour = quiz.questions_about([1, 4, 12])
    after = quiz.answer("after", filled("after", 4, hour), hour)
    assert after.words == ["quiz after the workshop: 4 of 4 right; before it: 8 of 10"]


def test_collected_workshop_results_include_the_quiz(home: Path, tmp_path: Path, monkeypatch):
    plan = Plan(name="w", folder=str(tmp_path / "w"), way="node", lessons=((1, 15),))
    # Other users cannot enter pytest's folders, and do not have to here.
    monkeypatch.setattr(workshop_folder, "demand_reachable", lambda folder: None)
    folder = workshop_folder.open_folder(plan)
    quiz.answer("before", filled("before", 3))
    quiz.answer("after", filled("after", 8))
    progress.note("hello.1", True)
    take(folder.path, os.getuid()).write(StatusReader().read())
    file = tmp_path / "results.csv"
    said = CliRunner().invoke(main, ["workshop", "collect", str(folder.path), "-o", str(file)])
    assert "of 1 who took both: 3.0 right before, 8.0 after" in said.output
    [row] = csv.DictReader(file.open())
    assert (row["quiz before"], row["quiz after"], row["passed"], row["tried"]) == (
        "3", "8", "1", "1",
    )  # fmt: skip


def test_a_class_without_a_quiz_gets_no_quiz_results(tmp_path: Path):
    (tmp_path / "ada.json").write_text('{"user": "ada", "tries": {"ring.1": 1}, "passed": {}}')
    assert "quiz" not in CliRunner().invoke(main, ["course", "progress", str(tmp_path)]).output


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(**{**os.environ, "RANKROOM_HOME": str(tmp_path / "home")})
    try:
        made.run("%load_ext rankroom")
        yield made
    finally:
        made.close()


def test_the_quiz_needs_no_ranks_in_a_notebook(kernel: Kernel):
    shown = kernel.run("%course --quiz before")
    assert QUESTIONS[2].before.text in f"{shown.stdout}{shown.text}{shown.outputs}"
    marked = kernel.run(f"%%check quiz.before\n{filled('before', 7)}")
    assert "7 of 10 right" in str(marked.outputs) and not marked.error
    again = kernel.run(f"%%check quiz.before\n{filled('before', 7)}")
    assert "already" in f"{again.stdout}{again.error}{again.outputs}"
    assert "invalid choice" in str(kernel.run("%course --quiz now").error)


def test_the_quiz_in_a_workshop_notebook_covers_its_lessons(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workshop_folder, "demand_reachable", lambda folder: None)
    lessons = ((1, 15), (4, 25), (12, 20))
    plan = Plan(name="w", folder=str(tmp_path / "w"), way="node", lessons=lessons)
    folder = workshop_folder.open_folder(plan)
    kernel.run(f"import os; os.environ['RANKROOM_WORKSHOP'] = {str(folder.path)!r}")
    assert "**4 questions.**" in str(kernel.run("%course --quiz before").outputs)
    sheet = filled("before", 3, quiz.questions_about([1, 4, 12]))
    marked = kernel.run(f"%%check quiz.before\n{sheet}")
    assert "3 of 4 right" in str(marked.outputs) and not marked.error
