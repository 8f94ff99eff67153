"""The text of the course's notebooks: uniform in structure, and complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from lesson_runner import CHECK, NOTEBOOKS, SOLUTION, read, solutions, wrong_answers
from rankroom.course.exercise import all_exercises
from rankroom.course.lessons import LESSONS
from rankroom.supervisor import runs
from reading_time import LINES, WORDS, minutes

ROOT = NOTEBOOKS.parent
FILES = [each.file for each in LESSONS]
LINKS = Path(__file__).with_name("links.txt")
FOLD = re.compile(r"<summary>(?:Hint \d: [\w ]+|Solution)</summary>\n(.*?)</details>", re.DOTALL)


@pytest.fixture(params=FILES, ids=lambda name: name[:2])
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    found = read(request.param)
    found.file = request.param
    return found


def test_a_lesson_has_the_standard_beginning_and_end(notebook):
    first, last = notebook.cells[0].source, notebook.cells[-1].source
    assert first.startswith("# ") and "you will" in first
    assert last.startswith("## What to remember")
    number = int(notebook.file[:2])
    assert f"%course {number}" in [
        line for cell in notebook.cells for line in cell.source.splitlines()
    ]


def test_paragraphs_of_a_lesson_are_short(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            words = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
            for paragraph in re.split(r"\n\s*\n", words):
                if not paragraph.lstrip().startswith(("|", "-", "1.")):
                    assert len(paragraph) < 700, paragraph


def links(notebook: nbformat.NotebookNode) -> set[str]:
    """Return the targets of the links in its text."""
    return {
        target
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for target in re.findall(r"\]\(([^)#]+)\)", cell.source)
    }


def test_links_of_a_lesson_are_listed_or_lead_to_a_file(notebook):
    """Links to other sites were checked by hand when they were listed: tests use no network."""
    known = LINKS.read_text().split()
    for target in links(notebook):
        assert target in known if "://" in target else (NOTEBOOKS / target).exists(), target


def test_every_listed_link_is_used_in_a_lesson():
    known = LINKS.read_text().split()
    assert known == sorted(set(known))
    assert set(known) == {each for file in FILES for each in links(read(file)) if "://" in each}


def test_code_cells_of_a_lesson_are_short(notebook):
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or len(cell.source.splitlines()) <= 25, cell.id


def test_a_lesson_writes_and_removes_only_its_own_files(notebook):
    """A reader's folder may contain a train.py of the reader's own."""
    own = f"lesson-{notebook.file[:2]}", "capstone-runs"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            paths = re.findall(r"^%%writefile (?:-a )?(\S+)|^!mkdir -p (\S+)", cell.source, re.M)
            paths += re.findall(r"""rmtree\(["']([^"']+)()|\brm -\w+ (\S+)""", cell.source)
            for path in filter(None, (each for found in paths for each in found)):
                assert path.startswith(own), f"{cell.id}: {path}"
            assert "unlink" not in cell.source, cell.id


def test_shell_commands_come_after_the_cell_that_sets_the_path(notebook):
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    begun = next(place for place, source in enumerate(code) if "%course" in source)
    assert not re.search(r"^!(rankroom|horovodrun)", "\n".join(code[:begun]), re.M)


def test_the_busy_message_quoted_for_teachers_is_current():
    quoted = "cluster … is busy with a run of …"
    assert runs.CLUSTER_BUSY.format(name="…", whose="…").startswith(quoted)
    for page in ("notebooks/README.md", "docs/workshop.md"):
        assert f'| "{quoted}"' in (ROOT / page).read_text("utf-8"), page


def test_a_lesson_has_a_going_further_section_before_its_end(notebook):
    assert notebook.cells[-2].id == "stretch"
    assert notebook.cells[-2].source.startswith("## Going further\n")


def test_the_last_line_of_a_lesson_says_how_to_stop_the_ranks(notebook):
    last = notebook.cells[-1].source.splitlines()[-1]
    assert last == "If you stop here, `%cluster stop` ends the ranks."


def test_the_stated_duration_of_a_lesson_matches_the_estimate(notebook):
    said = next(each.minutes for each in LESSONS if each.file == notebook.file)
    measured = minutes(notebook)
    assert said % 5 == 0 and abs(said - measured) < 5, f"{measured:.0f} minutes, not {said}"
    first = notebook.cells[0].source
    assert re.search(rf"\b{said} minutes", first) or (said == 10 and "ten minutes" in first)


def test_the_reading_speed_is_stated_in_the_teachers_guide():
    told = (NOTEBOOKS / "README.md").read_text()
    assert f"{WORDS} words and {LINES} lines of code a minute" in told


def test_exercises_have_three_hints_and_a_solution(notebook):
    checked = [
        match[1] for c in notebook.cells
        if c.cell_type == "code" and (match := CHECK.match(c.source))
    ]  # fmt: skip
    fewest = 1 if notebook.file.startswith("00") else 3
    assert fewest <= len(checked) <= 5
    assert set(checked) == set(solutions(notebook)) == set(wrong_answers(notebook.file))
    assert all(name in all_exercises() for name in checked)
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and CHECK.match(cell.source):
            after = notebook.cells[place + 1].source
            # Hints: a question, what is needed, an outline of the code; then the solution.
            question, _, shape, answer = FOLD.findall(after)
            assert "?" in question and "```python" not in question
            code = re.fullmatch(r"```python\n(.*)```", shape.strip(), re.DOTALL)[1]
            ast.parse(code)
            assert "..." in code and SOLUTION.search(after)[1].strip() in answer
            assert SOLUTION.search(after)[1].strip() != code.strip()
            # The cell itself does not contain the solution.
            assert SOLUTION.search(after)[1].strip() not in cell.source


def test_every_exercise_is_used_in_a_lesson():
    asked = {
        match[1] for file in FILES for cell in read(file).cells
        if (match := CHECK.match(cell.source))
    }  # fmt: skip
    assert asked == set(all_exercises())


def test_every_notebook_is_listed_packaged_and_documented():
    there = {path.name for path in NOTEBOOKS.glob("*.ipynb")}
    assert {*FILES, "quickstart.ipynb"} == there
    packed = (ROOT / "pyproject.toml").read_text()
    for name in [*there, "README.md"]:
        assert f'"notebooks/{name}" = "rankroom/notebooks/{name}"' in packed
    teachers = (NOTEBOOKS / "README.md").read_text()
    overview = "".join(cell.source for cell in read(FILES[0]).cells)
    for each in LESSONS:
        assert f"| {each.name} | {each.minutes} min |" in teachers, each.name
        if each.number:
            assert f"[{each.number} {each.title}]({each.file}) | {each.minutes} |" in overview


def test_no_long_line_occurs_in_two_lessons(notebook):
    """A long line that is in two lessons was copied."""
    mine = {line for cell in notebook.cells if cell.cell_type == "markdown"
            for line in cell.source.splitlines() if len(line) > 90}  # fmt: skip
    for file in FILES:
        if file != notebook.file:
            others = {line for cell in read(file).cells for line in cell.source.splitlines()}
            assert not mine & others


def test_imported_models_match_those_that_earlier_lessons_define():
    """The networks of `rankroom.course.models` are those that cells define."""
    import torch

    from rankroom.course import models

    shown: dict[str, object] = {"torch": torch, "device": "cpu", "my_part": None}
    for lesson, cells in ((4, ("model", "train-function")), (8, ("block", "gpt"))):
        for cell in read(FILES[lesson]).cells:
            if cell.id in cells:
                body = cell.source.split("%%distributed\n")[1].split("\nmodel = ")[0]
                exec(body, shown)
    images, text = torch.rand(2, 3, 9, 11), torch.arange(48).reshape(2, 24)
    cnn = [made(3, 7, seed=1) for made in (shown["cnn"], models.cnn)]
    gpt = []
    for made in (shown["GPT"], models.gpt):
        torch.manual_seed(0)
        gpt.append(made(50))
    for (one, other), given, scores in ((cnn, images, (2, 7)), (gpt, text, (2, 24, 50))):
        assert one(given).shape == scores
        assert torch.equal(one(given), other(given))
    changed = text.clone()
    changed[:, 12:] = 0  # later characters, which must not matter
    assert torch.allclose(gpt[0](text)[:, :12], gpt[0](changed)[:, :12], atol=1e-5)
    begun = shown["clock"]("cpu")
    assert 0 <= models.clock("cpu") - begun < 60


def test_the_lessons_folder_is_the_notebooks_folder(tmp_path: Path):
    from rankroom.course.lessons import folder

    assert folder() == NOTEBOOKS
