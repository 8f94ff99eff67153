"""The test cluster, which files share that leave it as it was; without root or Slurm they are
skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machines, missing
from shared_machines import SharedMachines

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


@pytest.fixture(scope="session")
def shared_machines() -> Iterator[SharedMachines]:
    shared = SharedMachines()
    yield shared
    shared.close()


# What a file leaves behind (a node that is down, a job that ends slowly) is no other's trouble.
@pytest.fixture(scope="module")
def machines(shared_machines: SharedMachines) -> Iterator[Machines]:
    """A laptop, a login node and four compute nodes with two (pretended) GPUs each."""
    with shared_machines.used() as machines:
        yield machines


@pytest.fixture
def gate(machines: Machines) -> Iterator[Path]:
    """Where it is, a run of `remote.begin` comes to its end."""
    file = machines.home("alice") / "gate"
    yield file
    machines.plug("laptop", "campus")
    file.unlink(missing_ok=True)
