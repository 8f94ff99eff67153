"""Tests that docs/promises.md names exist; those that `make test` leaves out are marked there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkout import ROOT, TESTS

PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")
ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([\w.]+\.(?:py|ts))::([^`]+)`( †)?")
SPEC = re.compile(r"^(?:\w*[tT]est)\((?:'([^'\n]+)'|`([^`\n]+)`),( ALWAYS,)?", re.MULTILINE)


def rows(page: str) -> list[tuple[str, str]]:
    """The table's rows: a promise, and the tests named for it."""
    return [row for row in ROW.findall(page) if row != ("promise", "test")]


def python_tests(file: Path) -> Iterator[tuple[str, bool]]:
    """Yield a file's tests, and whether `make test` runs them."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, "pytest.mark.thorough" not in map(ast.unparse, node.decorator_list)


def script_tests(file: Path) -> Iterator[tuple[str, bool]]:
    """The same for TypeScript; of browser tests, `make test` runs only those marked ALWAYS."""
    for plain, quoted, always in SPEC.findall(file.read_text("utf-8")):
        yield plain or quoted, bool(always) or not file.name.endswith(".spec.ts")


def all_tests() -> dict[tuple[str, str], bool]:
    found = {
        (file.name, name): often
        for file in TESTS.rglob("test_*.py")
        for name, often in python_tests(file)
    }
    for folder, files in ((TESTS / "ui", "*.spec.ts"), (ROOT / "extension/test", "*.test.ts")):
        for file in folder.glob(files):
            found |= {(file.name, name): often for name, often in script_tests(file)}
    return found


def complaints(page: str, tests: dict[tuple[str, str], bool]) -> list[str]:
    """Return the errors in a page's rows."""
    wrong = []
    for promise, said in rows(page):
        named = NAME.findall(said)
        if said.count("::") != len(named):
            wrong.append(f"{promise}: cannot be read")
        if not named and not said.startswith("not tested"):
            wrong.append(f"{promise}: no test")
        for file, name, mark in named:
            if (file, name) not in tests:
                wrong.append(f"{promise}: there is no {file}::{name}")
            elif not tests[file, name] and not mark:
                wrong.append(f"{promise}: `make test` leaves out {file}::{name}, which lacks its †")
    return wrong


def test_every_test_that_is_named_exists():
    assert len(rows(PAGE)) > 100
    assert complaints(PAGE, all_tests()) == []


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("`test_a.py::test_it`, `b.spec.ts::it’s there, too` †", []),
        ("not tested: there is no moon", []),
        ("`test_a.py::test_id`", ["all is well: there is no test_a.py::test_id"]),
        ("`test_b.py::test_it`", ["all is well: there is no test_b.py::test_it"]),
        ("test_a.py::test_it", ["all is well: cannot be read", "all is well: no test"]),
        ("`make test`", ["all is well: no test"]),
        (
            "`b.spec.ts::it’s there, too`",
            ["all is well: `make test` leaves out b.spec.ts::it’s there, too, which lacks its †"],
        ),
    ],
)
def test_errors_in_the_table_of_promises_are_reported(said: str, wrong: list[str]):
    page = f"| promise | test |\n|---|---|\n| all is well | {said} |\n"
    tests = {("test_a.py", "test_it"): True, ("b.spec.ts", "it’s there, too"): False}
    assert complaints(page, tests) == wrong
