"""Each edit applies exactly as often as it declares; otherwise the error names the edit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build import features
from rankroom.horovod_build.cache import cache_folder
from rankroom.horovod_build.edits.edit import Addition, Edit, apply, digest
from rankroom.horovod_build.edits.native_edits import NATIVE_EDITS
from rankroom.horovod_build.edits.python_edits import PYTHON_EDITS
from rankroom.horovod_build.plan import ALL_EDITS
from rankroom.horovod_build.source import fetch, unpack

EDIT = Edit("twice", "a/b.txt", "old", "new", "a reason", count=2)


def tree(root: Path, text: str) -> Path:
    (root / "a").mkdir()
    (root / "a" / "b.txt").write_text(text)
    return root


def test_an_edit_replaces_its_declared_number_of_occurrences(tmp_path: Path) -> None:
    assert apply(tree(tmp_path, "old, old and older"[:12]), [EDIT]) == ["twice"]
    assert (tmp_path / "a" / "b.txt").read_text() == "new, new and"


@pytest.mark.parametrize(("text", "found"), [("", 0), ("old", 1), ("old old old", 3)])
def test_an_unexpected_number_of_occurrences_is_an_error_naming_the_edit(
    tmp_path: Path, text: str, found: int
) -> None:
    with pytest.raises(HorovodBuildError, match=rf"twice.*{found} times in a/b.txt, expected 2"):
        apply(tree(tmp_path, text), [EDIT])
    assert (tmp_path / "a" / "b.txt").read_text() == text


def test_applying_twice_fails(tmp_path: Path) -> None:
    apply(tree(tmp_path, "old old"), [EDIT])
    with pytest.raises(HorovodBuildError, match="twice"):
        apply(tmp_path, [EDIT])


def test_a_missing_file_is_an_error_naming_the_edit(tmp_path: Path) -> None:
    with pytest.raises(HorovodBuildError, match=r"twice: no file a/b\.txt"):
        apply(tmp_path, [EDIT])


def test_a_file_is_added_once(tmp_path: Path) -> None:
    addition = Addition("ours", "x/keras3.py", "keras3.py", "a reason")
    apply(tmp_path, [addition])
    assert (tmp_path / "x" / "keras3.py").read_text() == addition.text()
    with pytest.raises(HorovodBuildError, match=r"ours: x/keras3\.py is already"):
        apply(tmp_path, [addition])


def test_the_digest_depends_on_an_edit_but_not_on_its_reason() -> None:
    other = dataclasses.replace(EDIT, reason="said better")
    assert digest([EDIT]) == digest([other])
    for change in ({"new": "x"}, {"old": "x"}, {"count": 1}, {"file": "c"}, {"id": "y"}):
        assert digest([EDIT]) != digest([dataclasses.replace(EDIT, **change)])


def test_every_edit_has_a_unique_name_and_a_reason() -> None:
    names = [edit.id for edit in ALL_EDITS]
    assert len(names) == len(set(names))
    assert all(len(edit.reason) > 15 for edit in ALL_EDITS)
    assert all(edit.old != edit.new for edit in ALL_EDITS if isinstance(edit, Edit))


def test_the_features_name_edits_that_exist() -> None:
    names = {edit.id for edit in ALL_EDITS}
    assert all(feature.edits and feature.edits <= names for feature in features.FEATURES)


def test_the_native_edits_fit_horovods_source(tmp_path: Path) -> None:
    root = unpack(fetch(cache_folder() / "source"), tmp_path)
    assert apply(root, NATIVE_EDITS) == [edit.id for edit in NATIVE_EDITS]


def test_native_edits_change_no_python_files() -> None:
    assert all(not edit.file.endswith(".py") for edit in NATIVE_EDITS)
    assert all(edit.file.endswith(".py") for edit in PYTHON_EDITS)
