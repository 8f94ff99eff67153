"""The test cluster, brought up again for each file; without root or Slurm they are skipped."""

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


# What a file leaves behind (a node that is down, a job that ends slowly) is no other's trouble.
@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A laptop, a login node and four compute nodes with two (pretended) GPUs each."""
    made = Machines()
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def gate(machines: Machines) -> Iterator[Path]:
    """Where it is, a run of `remote.begin` comes to its end."""
    file = machines.home("alice") / "gate"
    yield file
    machines.plug("laptop", "campus")
    file.unlink(missing_ok=True)
