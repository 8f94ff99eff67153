"""Fixtures for tests on simulated machines; the tests are skipped where these cannot be made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from odd_machine import Odd, missing

HERE = Path(__file__).parent
WHY = missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and WHY:
            item.add_marker(pytest.mark.skip(reason=WHY))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if WHY:
        terminalreporter.write_line(f"tests/machines were skipped: {WHY}")


@pytest.fixture(scope="session")
def odd_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library compiled from odd.c."""
    made = tmp_path_factory.mktemp("odd") / "odd.so"
    words = ["-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "odd.c"), "-ldl"]
    subprocess.run(["cc", *words], check=True)
    return made


@pytest.fixture
def odd(odd_library: Path, tmp_path: Path) -> Odd:
    """File errors and a clock offset for processes that are started with its environment."""
    return Odd(odd_library, tmp_path / "is-odd")
