"""A test lies in the folder of what it needs, and tests share only what is in tests/support."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from checkout import SUPPORT, TESTS

FILES = [file for file in TESTS.rglob("*.py") if "node_modules" not in file.parts]
# The marker by which `-m` can leave out a folder's tests, which start ranks or a browser.
MARKERS = {"cluster": "cluster", "faults": "cluster", "machines": "cluster", "ui": "ui"}


def names(file: Path) -> set[str]:
    """The modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def folder(file: Path) -> str:
    """`unit`, `cluster`, …; empty for conftest.py itself."""
    return file.relative_to(TESTS).parts[0] if file.parent != TESTS else ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_test_files_import_only_from_support_and_their_own_folder(file: Path):
    homes: dict[str, set[str]] = {}
    for other in FILES:
        homes.setdefault(other.stem, set()).add(folder(other))
    for name in names(file) & homes.keys():
        where = homes[name]
        assert where & {"support", folder(file)}, f"{name} is in tests/{sorted(where)}"
    if SUPPORT in file.parents:
        assert not any(name.startswith("test_") for name in names(file))


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.name.startswith("test_") and folder(file) in MARKERS],
    ids=lambda file: str(file.relative_to(TESTS)),
)
def test_tests_that_start_ranks_or_a_browser_are_marked(file: Path):
    assert f"pytest.mark.{MARKERS[folder(file)]}" in file.read_text("utf-8")


def test_unit_tests_start_no_ranks():
    unit = [file for file in FILES if folder(file) == "unit" and file.name.startswith("test_")]
    assert len(unit) > 50
    for file in unit:
        if file == Path(__file__):
            continue
        text = file.read_text("utf-8")
        assert "pytest.mark.cluster" not in text, file.name
        assert "shared_ranks" not in text and "Cluster.local(" not in text, file.name


def test_no_test_is_skipped_for_lack_of_a_package_or_feature():
    """Only what a machine lacks, such as root, is a reason to skip a test; it must be stated."""
    found = 0
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            where = f"{file.relative_to(TESTS)}:{node.lineno}"
            assert node.func.attr != "importorskip", f"{where}: `make test` installs packages"
            if node.func.attr in ("skip", "skipif"):
                words = ast.unparse(node)
                assert not re.search("features|find_spec|rankroom", words), f"{where}: {words}"
                assert node.func.attr == "skip" or "reason=" in words, where
                found += 1
    assert found > 5


def test_no_file_of_tests_imports_a_framework_at_its_top():
    """Each worker collects all files, and would import it, which takes seconds."""
    heavy = {"torch", "tensorflow", "keras", "horovod", "deepspeed"}
    for file in FILES:
        is_collected = file.name.startswith("test_")
        for node in ast.parse(file.read_text("utf-8")).body if is_collected else ():
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.partition(".")[0] for name in names}, file.relative_to(TESTS)


def test_no_two_files_of_tests_have_one_name():
    """pytest would import only the first of them."""
    stems = [file.stem for file in FILES if file.name.startswith("test_")]
    assert len(stems) == len(set(stems))
