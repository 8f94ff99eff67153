"""A Slurm test cluster for each test file; without root or Slurm the tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machines, missing

HERE = Path(__file__).parent


WHY = missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if WHY:
                item.add_marker(pytest.mark.skip(reason=WHY))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if WHY:
        terminalreporter.write_line(f"tests/slurm were skipped: {WHY}")


# For each file, so that a node left down or a job that ends slowly does not affect another file.
@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A laptop, a login node and four compute nodes with two simulated GPUs each."""
    made = Machines()
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def gate(machines: Machines) -> Iterator[Path]:
    """The path of the file that ends a run of `remote.begin` when it is created."""
    file = machines.home("alice") / "gate"
    yield file
    machines.plug("laptop", "campus")
    file.unlink(missing_ok=True)
