"""A reader's progress, and a class's."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankroom.cli import main
from rankroom.course import progress
from rankroom.course.copies import start_over
from rankroom.course.exercise import all_exercises
from rankroom.errors import UsageError


def test_tries_and_the_day_of_the_first_success_are_kept(home: Path):
    progress.note("ring.1", False)
    progress.note("ring.1", True)
    day = progress.read().passed["ring.1"]
    progress.note("ring.1", False)
    found = progress.read()
    assert found.tries == {"ring.1": 3} and found.passed == {"ring.1": day}
    assert found.user


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 1}', '{"user": "a", "tries": []}'])
def test_a_corrupt_progress_file_is_replaced(home: Path, text: str):
    home.mkdir()
    progress.file().write_text(text)
    assert progress.read().tries == {}
    progress.note("ring.1", True)
    assert progress.read().tries == {"ring.1": 1}


@pytest.mark.parametrize(
    "spoil", [lambda: progress.file().write_text("{"), lambda: progress.file().mkdir()]
)
def test_an_unreadable_progress_file_is_reported_as_an_error(home: Path, spoil: Callable[[], None]):
    home.mkdir()
    spoil()
    said = CliRunner().invoke(main, ["course", "progress"])
    assert said.exit_code == 1 and f"cannot read your progress, {progress.file()}: " in said.output
    assert "no exercise" not in said.output


def test_progress_that_cannot_be_written_raises_no_error(home: Path):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the home should be")
    progress.note("ring.1", True)


def test_the_progress_of_a_class_is_summarized(home: Path, tmp_path: Path):
    folder = tmp_path / "collected"
    for user, passed in (("ada", ["ring.1", "ring.2"]), ("grace", ["ring.1"])):
        (folder / user).mkdir(parents=True)
        data = {"user": user, "tries": {"ring.1": 2, "ring.2": 4},
                "passed": dict.fromkeys(passed, "2026-01-01")}  # fmt: skip
        (folder / user / "course.json").write_text(json.dumps(data))
    (folder / "other.json").write_text("[1, 2]")
    said = CliRunner().invoke(main, ["course", "progress", str(folder)])
    assert said.exit_code == 0, said.output
    assert "2 participants" in said.output
    assert f"ada                    2 of {len(all_exercises())} passed" in said.output
    assert "ring.2                 1      2         4.0" in said.output


def test_invalid_progress_files_of_a_class_are_reported_and_skipped(tmp_path: Path):
    data = {"user": "ada\x1b[2J\x07\u202e", "tries": {"ring.1": 1}, "passed": {}}
    (tmp_path / "ada.json").write_text(json.dumps(data))
    for name, text in (
        ("endless", '{"user": "e", "tries": {"ring.1": 1e999}, "passed": {}}'),
        ("large", f'{{"user": "l", "tries": {{"ring.1": 1{"0" * 400}}}, "passed": {{}}}}'),
        ("deep", "[" * 100_000),
        ("nobody", '{"user": "", "tries": {}, "passed": {}}'),
    ):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "folder.json").mkdir()
    said = CliRunner().invoke(main, ["course", "progress", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "1 participant" in said.output
    for name in ("endless", "large", "deep", "nobody", "folder"):
        assert f"left out {tmp_path / name}.json: " in said.output
    assert not {*"\x1b\x07\u202e"} & {*said.output}


def test_a_class_folder_without_progress_files_is_reported(tmp_path: Path):
    said = CliRunner().invoke(main, ["course", "progress", str(tmp_path)])
    assert said.exit_code == 1 and "no course.json in" in said.output


def test_a_learners_own_progress_is_shown(home: Path):
    assert "no exercise tried yet" in CliRunner().invoke(main, ["course", "progress"]).output
    progress.note("ring.1", True)
    progress.note("ring.2", False)
    said = CliRunner().invoke(main, ["course", "progress"]).output
    assert "ring.1           passed 20" in said and "ring.2           not yet" in said
    listed = CliRunner().invoke(main, ["course", "list"]).output
    assert "03 Ring all-reduce" in listed and "1 of 4 exercises" in listed


def test_course_copy_adds_the_notebooks_and_keeps_changed_ones(tmp_path: Path):
    folder = tmp_path / "mine"
    first = CliRunner().invoke(main, ["course", "copy", str(folder)])
    assert first.exit_code == 0, first.output
    (folder / "01_hello_ranks.ipynb").write_text("mine")
    again = CliRunner().invoke(main, ["course", "copy", str(folder)])
    assert "kept" in again.output
    assert (folder / "01_hello_ranks.ipynb").read_text() == "mine"
    for name in ("16_lab_on_a_node.ipynb", "README.md", "quickstart.ipynb"):
        assert (folder / name).exists()


@pytest.mark.parametrize(
    "change", [lambda: progress.note("ring.2", True), lambda: progress.begin(3)]
)
def test_a_temporarily_unreadable_progress_file_is_not_overwritten(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
):
    progress.note("ring.1", True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        change()
    assert list(progress.read().passed) == ["ring.1"]


def test_a_lesson_whose_reset_fails_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mine = tmp_path / "01_hello_ranks.ipynb"
    mine.write_text("mine")

    def half(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:100].encode())
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(UsageError, match="Disk quota exceeded"):
            start_over(mine)
    assert [path.name for path in tmp_path.iterdir()] == [mine.name]
    assert mine.read_text() == "mine"
    kept = start_over(mine)
    assert kept.read_text() == "mine" and "cells" in mine.read_text()
    assert len([*tmp_path.iterdir()]) == 2


def refuse(path: Path, *args: object) -> str:
    raise OSError(errno.EIO, "Input/output error")
