"""What `%%check capstone.4` does with a capstone.py that exists already."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom.errors import UsageError
from rankroom.notebook.course_magics import Scripts


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "capstone.py"


def texts(script: Path) -> list[str]:
    """Return the texts of all files in the script's folder."""
    return sorted(path.read_text() for path in script.parent.iterdir())


def test_drafts_of_this_notebook_replace_one_another(script: Path):
    scripts = Scripts()
    for draft in ("first", "second", "second", "third"):
        assert scripts.write(script, draft) is None
    assert texts(script) == ["third"]


def test_a_script_that_has_passed_is_kept_when_another_cell_is_checked(script: Path):
    scripts = Scripts()
    scripts.write(script, "solved")
    scripts.passed(script)
    assert scripts.write(script, "solved") is None
    kept = scripts.write(script, "starter")
    assert kept and kept.read_text() == "solved" and kept.suffix == ".py"
    assert kept.name.startswith("capstone (before check ")
    assert scripts.write(script, "draft") is None
    assert texts(script) == ["draft", "solved"]


def test_a_script_written_by_another_session_is_kept(script: Path):
    before = Scripts()
    before.write(script, "draft")
    before.write(script, "solved")
    before.passed(script)
    after = Scripts()
    kept = after.write(script, "starter")
    assert kept and kept.read_text() == "solved"
    assert after.write(script, "starter") is None
    assert texts(script) == ["solved", "starter"]


def test_a_script_changed_by_hand_is_kept(script: Path):
    scripts = Scripts()
    scripts.write(script, "draft")
    script.write_text("changed in an editor")
    kept = scripts.write(script, "next draft")
    assert kept and kept.read_text() == "changed in an editor"


def test_a_script_that_cannot_be_written_is_reported_with_its_folder(tmp_path: Path):
    folder = tmp_path / "missing"
    with pytest.raises(UsageError, match=f"cannot write the cell to .* in {folder}"):
        Scripts().write(folder / "capstone.py", "cell")
