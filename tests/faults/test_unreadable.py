"""Files that cannot be read for a while, and processes out of file descriptors.

Nothing is taken for gone or ended because of that, and no line is lost.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cells import finish
from numbered import GATED, assert_numbered, written
from rankroom.cluster import actions, cleanup, launch, lookup, repair
from rankroom.cluster.local import Cluster
from rankroom.errors import (
    RankroomError,
    UnreadableError,
    UnreadableRecordError,
    UsageError,
    file_error,
)
from rankroom.record import cluster_file
from rankroom.record.cluster_file import ClusterPaths
from rankroom.rpc.client import ask, connected
from rankroom.run.run import Run
from rankroom.system.polling import poll_until
from unreadable import broken, hidden

pytestmark = pytest.mark.cluster

AWHILE_S = 2.0
FEW = 256  # file descriptors


@contextlib.contextmanager
def home_away(info: Path) -> Iterator[None]:
    """Replace the whole home by an empty one, as if it were not mounted."""
    home = info.parents[2]
    aside = home.with_name("aside")
    home.rename(aside)
    home.mkdir()
    try:
        yield
    finally:
        home.rmdir()
        aside.rename(home)


@contextlib.contextmanager
def no_descriptors(pid: int = 0) -> Iterator[None]:
    """Keep a process from opening any file or socket; those already open stay open."""
    before = resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.fixture
def two(home: Path) -> Iterator[Cluster]:
    made = Cluster.local(ranks=2)
    yield made
    made.stop()
    assert launch.own_processes(made.paths) == []


def begin(cluster: Cluster, gate: Path) -> Run:
    run = cluster.run(GATED.format(gate=str(gate)))
    deadline = time.monotonic() + 60
    while not all(written(cluster.store, run.id, rank).count("\n") > 20 for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return run


def assert_whole(cluster: Cluster, run: Run) -> None:
    assert run.wait(60)
    assert run.state == "done", run.info
    for rank, text in run.results.items():
        assert_numbered(cluster.store, run.id, rank, int(text.strip("'").split()[0]))
    # If the run's end could not be written in time, it is written later, as with a full disk.
    poll_until(lambda: cluster.store.load(run.id).state == "done", 10, 0.05)
    assert cluster.store.load(run.id).state == "done"
    again = cluster.run("rank")
    assert again.wait(60)
    assert again.results == {0: "0", 1: "1"}


@pytest.mark.parametrize("away", [hidden, pytest.param(broken, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "ends", ["afterwards", pytest.param("meanwhile", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("seconds", [AWHILE_S, pytest.param(60.0, marks=pytest.mark.thorough)])
def test_a_run_goes_on_while_the_clusters_file_cannot_be_read(
    two: Cluster,
    tmp_path: Path,
    away: Callable[[Path], contextlib.AbstractContextManager[None]],
    ends: str,
    seconds: float,
):
    run = begin(two, tmp_path / "gate")
    with away(two.paths.info):
        time.sleep(seconds)
        assert run.state == "running"
        assert two.running
        assert two.ranks[1].pid
        if ends == "meanwhile":
            (tmp_path / "gate").touch()
            assert run.wait(30)
    (tmp_path / "gate").touch()
    assert_whole(two, run)


@pytest.mark.parametrize("away", [hidden, pytest.param(broken, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=pytest.mark.thorough)])
def test_a_cluster_starts_runs_and_stops_while_its_file_cannot_be_read(
    home: Path, away: Callable[[Path], contextlib.AbstractContextManager[None]], seconds: float
):
    paths = ClusterPaths("away")
    paths.make(0)

    def be_away() -> None:
        with away(paths.info):
            time.sleep(seconds)

    hiding = threading.Thread(target=be_away)
    hiding.start()
    made = Cluster.local(ranks=2, name="away")
    hiding.join()
    supervisor = made.refresh().supervisor
    assert finish(made, "rank").results == {0: "0", 1: "1"}
    with away(paths.info):
        time.sleep(seconds)
        assert made.running and made.alive == [0, 1]
        assert finish(made, "rank").results == {0: "0", 1: "1"}
    assert made.refresh().supervisor == supervisor
    with away(paths.info):
        made.stop()
        assert launch.own_processes(paths) == []
    assert not paths.folder.exists()


@pytest.mark.parametrize("away", [hidden, pytest.param(broken, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_a_run_goes_on_while_its_record_cannot_be_read(
    two: Cluster,
    tmp_path: Path,
    away: Callable[[Path], contextlib.AbstractContextManager[None]],
    name: str,
):
    run = begin(two, tmp_path / "gate")
    with away(run.path / name):
        time.sleep(1.0)
        assert run.state == "running" and two.latest is run
        is_said = away is broken and name == "run.json"
        with pytest.raises(UnreadableRecordError) if is_said else contextlib.nullcontext():
            assert repair.complete_all(two.store) == []
        with pytest.raises(RankroomError, match="is busy with a run of this notebook"):
            two.run("1")
    (tmp_path / "gate").touch()
    assert_whole(two, run)


@pytest.mark.parametrize(
    "ends", ["afterwards", pytest.param("meanwhile", marks=pytest.mark.thorough)]
)
def test_a_run_goes_on_while_its_client_is_out_of_file_descriptors(
    two: Cluster, tmp_path: Path, ends: str
):
    gate = tmp_path / "gate"
    run = begin(two, gate)
    with no_descriptors():
        time.sleep(AWHILE_S)
        assert run.state == "running"
        if ends == "meanwhile":
            # Creating a file needs a descriptor, creating a symlink does not.
            gate.symlink_to("/")
            time.sleep(AWHILE_S)
    if ends == "afterwards":
        gate.touch()
    assert_whole(two, run)


@pytest.mark.thorough
def test_a_run_survives_a_supervisor_out_of_file_descriptors(two: Cluster, tmp_path: Path):
    supervisor = two.info.supervisor
    run = begin(two, tmp_path / "gate")
    with no_descriptors(supervisor):
        time.sleep(AWHILE_S)
        assert run.state == "running"
    (tmp_path / "gate").touch()
    assert_whole(two, run)
    assert two.refresh().supervisor == supervisor
    assert two.info.state == "running"
    two.restart([1])
    assert_whole(two, two.run("rank; '0 lines'"))


@pytest.mark.parametrize("away", [hidden, broken, home_away])
def test_a_run_goes_on_while_the_home_or_its_cluster_file_is_unavailable(
    cluster: Cluster,
    tmp_path: Path,
    away: Callable[[Path], contextlib.AbstractContextManager[None]],
):
    """With `home_away`, not even the cluster's folder is there."""
    run = begin(cluster, tmp_path / "gate")
    before = cluster.paths.read()
    with away(cluster.paths.info):
        time.sleep(AWHILE_S)
        assert cluster.paths.read() == before
        assert cluster.running and run.state == "running"
    (tmp_path / "gate").touch()
    assert_whole(cluster, run)


@pytest.mark.parametrize("has_read", [True, False], ids=["knew it", "never read it"])
@pytest.mark.parametrize("does", ["attach", "run", "start", "stop"])
def test_a_client_out_of_file_descriptors_reports_it_and_ends_nothing(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    does: str,
    has_read: bool,
):
    supervisor = cluster.refresh().supervisor
    run = begin(cluster, tmp_path / "gate")
    other = Cluster.attach(cluster.name)
    monkeypatch.setattr(Cluster, "current", None)  # else attach() would return `other`
    deeds: dict[str, Callable[[], object]] = {
        "attach": lambda: Cluster.attach(cluster.name),
        "run": lambda: fresh(other).run("1"),
        "start": lambda: Cluster.local(ranks=1, name="never"),
        "stop": other.stop,
    }
    if not has_read:
        monkeypatch.setattr(cluster_file, "_read_last", {})
    try:
        with no_descriptors(), pytest.raises((RankroomError, OSError)) as refused:
            deeds[does]()
        words = in_words(refused.value)
        assert "Too many open files; this process has too many open files: `ulimit -n`" in words
        assert "\n" not in words
        assert run.state == "running" and cluster.running
        assert not ClusterPaths("never").folder.exists()
    finally:
        (tmp_path / "gate").touch()
    assert_whole(cluster, run)
    assert cluster.refresh().supervisor == supervisor and psutil.pid_exists(supervisor)
    other.close()
    assert finish(Cluster.attach(cluster.name), "rank").results == {0: "0", 1: "1"}


def fresh(cluster: Cluster) -> Cluster:
    """Close the cluster's connections, so that it needs new ones."""
    cluster._supervisor.close()
    return cluster


def in_words(error: BaseException) -> str:
    """The error's text, as magics and commands show it."""
    return str((file_error(error) if isinstance(error, OSError) else None) or error)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks in a cluster whose processes are all limited to FEW file descriptors."""
    start = "from rankroom.cluster.local import Cluster; Cluster.local(ranks=2, name='few')"
    limited = ["sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        subprocess.run([*limited, sys.executable, "-c", start], check=True, timeout=120)
        made = Cluster.attach("few")
        try:
            yield made
        finally:
            made.stop()


def answers(where: str, key: str) -> bool:
    with contextlib.suppress(OSError):
        return ask(where, key, 5.0, do="alive") == {}
    return False


def test_a_supervisor_out_of_descriptors_delays_new_clients_and_serves_the_others(
    few: Cluster, tmp_path: Path
):
    supervisor = psutil.Process(few.refresh().supervisor)
    where, key = few.info.rpc, few.info.rpc_key
    run = begin(few, tmp_path / "gate")
    with contextlib.ExitStack() as stack:
        for _ in range(2 * FEW):
            peer = stack.enter_context(connected(where, key))
            peer.send_multipart([b"1", b'{"do": "alive"}'])
        assert poll_until(lambda: supervisor.num_fds() >= FEW, 60, 0.05)
        with pytest.raises(OSError) as put_off:
            ask(where, key, 1.0, do="alive")
        assert not isinstance(put_off.value, ConnectionRefusedError), "it would be taken for gone"
        # Clients that were connected before get replies, and the run's output is recorded.
        size = len(written(few.store, run.id, 0))
        assert poll_until(lambda: len(written(few.store, run.id, 0)) > size, 30, 0.02)
        assert few._ask("follow")["run"]["id"] == run.id
        assert run.state == "running" and few.running
        assert [each.name for each in lookup.running_clusters()] == ["few"]
    # The supervisor is still accepting pending connections, and finding them closed.
    assert poll_until(lambda: answers(where, key), 60, 0.1)
    (tmp_path / "gate").touch()
    assert_whole(few, run)
    assert few.refresh().supervisor == supervisor.pid and supervisor.is_running()


@pytest.mark.parametrize("away", [hidden, pytest.param(broken, marks=pytest.mark.thorough)])
def test_a_new_process_leaves_a_cluster_with_an_unreadable_file_alone(
    two: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    away: Callable[[Path], contextlib.AbstractContextManager[None]],
):
    """As in a new process that cleans up, starts a cluster of this name, or looks it up."""
    with away(two.paths.info):
        monkeypatch.setattr(cluster_file, "_read_last", {})  # `two` can no longer read it, either
        found = cleanup.findings(two.store)
        assert [each.clean for each in found if two.name in each.what] == [None]
        with pytest.raises((UsageError, UnreadableError), match=two.name):
            launch.launch(2, two.name, None)
        assert two.paths.folder.is_dir()
        if away is broken:
            with pytest.raises(UnreadableError, match=f"whether cluster {two.name} exists"):
                actions.find(two.name)
            with pytest.raises(UnreadableError):
                lookup.find(two.name)
            assert lookup.running_clusters() == []
    assert psutil.pid_exists(two.info.supervisor)
    assert [each.name for each in lookup.running_clusters()] == [two.name]


def test_a_stopped_cluster_is_gone_at_once(home: Path):
    made = Cluster.local(ranks=1)
    made.stop()
    assert made.paths.read() is None
    assert not made.running


def test_a_leftover_cluster_folder_without_processes_is_reused(home: Path):
    paths = ClusterPaths("left")
    paths.make(1)
    made = Cluster.local(ranks=1, name="left")
    try:
        assert made.paths.info.exists()
    finally:
        made.stop()
