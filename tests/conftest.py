"""Fixtures for all tests: a fresh RANKROOM_HOME, and clusters that tests share."""

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
# Folders, or files, of CPU-bound tests, and of tests that mostly wait; in each, the slowest first.
QUEUES = (
    ["ui", "course", "cluster"],
    ["faults/test_unreadable.py", "slurm", "dist", "faults", "machines"],
)

# Despite PYTHONDONTWRITEBYTECODE: without cached bytecode, each worker would parse all tests.
sys.dont_write_bytecode = False
# Ranks start slowly on a busy machine; a long timeout delays nothing if they are ready earlier.
os.environ.setdefault("RANKROOM_START_SECONDS", "120")
# A shell starts background jobs with SIGINT ignored, which the tests' processes would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A ZeroMQ context that is garbage-collected waits forever for its open sockets, in whichever test
# the collector runs. So contexts that other packages leave open are not terminated.
zmq.Context.__del__ = lambda context: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Interleave both queues, so that waiting tests leave no core idle; the quick folders come last.
    names = {item.path: item.path.relative_to(HERE).as_posix() for item in items}
    places: dict[Path, float] = {}
    for queue in QUEUES:
        mine = [
            path
            for begin in queue
            for path, name in names.items()
            if name.startswith(begin) and (name == begin or name not in queue)
        ]
        places |= {path: place / len(mine) for place, path in enumerate(mine)}
    items.sort(key=lambda item: places.get(item.path, 1.0))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fresh RANKROOM_HOME."""
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks, started once for all tests of a module, in a RANKROOM_HOME of their own."""
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
    """Fake Slurm and PBS commands on PATH, and a fresh RANKROOM_HOME."""
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    return put_first(tmp_path / "scheduler", monkeypatch)


# Shuts Horovod down, as its background threads wake up even when there is no work.
QUIET = """
import sys
for name in ("horovod.torch", "horovod.tensorflow"):
    library = sys.modules.get(name)
    if library is not None and library.is_initialized():
        library.shutdown()
"""


@pytest.fixture(scope="module")
def frameworks(shared_ranks: Cluster) -> Iterator[Cluster]:
    """The shared ranks; after each module, Horovod is shut down so that it uses no CPU time."""
    yield shared_ranks
    shared_ranks.run(QUIET).wait(60)
