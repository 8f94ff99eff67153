"""Fixtures of all tests: a home of their own, and ranks that tests share."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fake_scheduler import FakeScheduler, put_first
from rankroom.cluster.local import Cluster

pytest_plugins = ["fault_table", "running_tests"]

HERE = Path(__file__).parent
# What mostly computes, and what mostly waits: in each, what takes longest begins first.
QUEUES = (["ui", "course", "cluster"], ["slurm", "dist", "faults", "machines"])

# Each worker would parse all tests again otherwise, where the environment forbids bytecode.
sys.dont_write_bytecode = False
# A busy machine takes its time; nothing is waited for longer than it takes.
os.environ.setdefault("RANKROOM_START_SECONDS", "120")
# A shell ignores interrupts in what it starts in the background, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A context of ZeroMQ that is collected waits for its sockets, which nobody can close any more: for
# ever, in whatever test the collector runs. Those that other packages leave open stay so.
zmq.Context.__del__ = lambda context: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Both side by side, so that no processor waits with one of them; what is quick comes last.
    rooms = {item.path: item.path.relative_to(HERE).parts[0] for item in items}
    places: dict[Path, float] = {}
    for queue in QUEUES:
        mine = sorted((p for p in rooms if rooms[p] in queue), key=lambda p: queue.index(rooms[p]))
        places |= {path: place / len(mine) for place, path in enumerate(mine)}
    items.sort(key=lambda item: places.get(item.path, 1.0))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fresh RANKROOM_HOME."""
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks, started once for all tests of a module, in a home of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        made = Cluster.local(ranks=2)
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def shared_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks that several modules share, so that each framework is imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        made = Cluster.local(ranks=2)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """Pretended commands of Slurm and PBS on PATH, and a Rankroom home of one's own."""
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    return put_first(tmp_path / "scheduler", monkeypatch)


# Horovod looks for work a thousand times a second, also when there is none.
QUIET = """
import sys
for name in ("horovod.torch", "horovod.tensorflow"):
    library = sys.modules.get(name)
    if library is not None and library.is_initialized():
        library.shutdown()
"""


@pytest.fixture(scope="module")
def frameworks(shared_ranks: Cluster) -> Iterator[Cluster]:
    """The shared ranks, for a module; between modules their Horovod costs nothing."""
    yield shared_ranks
    shared_ranks.run(QUIET).wait(60)
