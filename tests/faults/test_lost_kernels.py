"""A kernel dies during a run: the run goes on, and any other kernel can follow it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from kernel import Kernel
from numbered import GATED, assert_numbered, written
from rankroom.cluster.launch import own_processes
from rankroom.cluster.local import Cluster
from rankroom.cluster.lookup import running_clusters
from rankroom.cluster.repair import complete_all
from rankroom.errors import RankroomError
from rankroom.record.cluster_file import ClusterPaths
from rankroom.record.model import RunInfo
from rankroom.record.store import Store
from rankroom.system import process_tree

pytestmark = pytest.mark.cluster

FLOOD = "for i in range(150_000):\n    print('line', i)"
SLOW = "import time\nfor i in range(150):\n    print('line', i)\n    time.sleep(0.01)"
# Keeps a run from ending before its kernel is killed.
GATE = "\nimport os, time\nwhile not os.path.exists({gate!r}):\n    time.sleep(0.005)"


@dataclass
class Lab:
    """A cluster that a kernel started, in a home of its own."""

    home: Path
    kernel: Kernel = field(init=False)

    @property
    def store(self) -> Store:
        return Store(self.home)

    def begin(self, source: str) -> str:
        """Run a cell with `--detach`, as a user would; return the run's id."""
        shown = self.kernel.run(f"%%distributed --detach\n{source}")
        assert not shown.error, shown.error
        return str(shown.run["id"])

    def kill_kernel(self) -> None:
        """Kill the kernel, as the out-of-memory killer does; the new one starts without state."""
        os.kill(self.kernel.manager.provisioner.pid, signal.SIGKILL)
        self.kernel.restart()
        self.kernel.run("%load_ext rankroom")

    def shut_down(self) -> None:
        """Shut the kernel down, as a user does at the end of the day."""
        self.kernel.client.stop_channels()
        self.kernel.manager.shutdown_kernel()

    def open_again(self) -> None:
        """Start another kernel, and only load Rankroom in it."""
        self.kernel = Kernel(**{**os.environ, "RANKROOM_HOME": str(self.home)})
        self.kernel.run("%load_ext rankroom")

    def await_end(self, run_id: str) -> RunInfo:
        """Wait for the run's end, which needs no client; meanwhile it must never count as lost."""
        states = set()
        wait_for(lambda: states.add(found := self.store.load(run_id).state) or found != "running")
        assert "lost" not in states
        return self.store.load(run_id)


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("home")
    made = Lab(home)
    made.open_again()
    try:
        shown = made.kernel.run("%cluster start --ranks 2 --name lab")
        assert "lab: 2 ranks" in shown.stdout, shown
        yield made
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANKROOM_HOME", str(home))
            if running_clusters():
                Cluster.attach().stop()
        made.kernel.close()


@pytest.fixture
def lab(module_lab: Lab, monkeypatch) -> Lab:
    monkeypatch.setenv("RANKROOM_HOME", str(module_lab.home))
    if "no cluster in this notebook" in module_lab.kernel.run("%cluster").stdout:
        module_lab.kernel.run("%cluster attach")
    return module_lab


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


def size_of(lab: Lab, run_id: str) -> int:
    return lab.store.paths(run_id).events.stat().st_size


@pytest.mark.fault(
    "the kernel is killed during {what}, and {who}",
    "the record is complete, no line missing or twice",
    racy=True,
)
@pytest.mark.parametrize(
    ("what", "source", "count"), [("a flood", FLOOD, 150_000), ("slow prints", SLOW, 150)]
)
@pytest.mark.parametrize(
    "who", ["another one attaches", pytest.param("no one comes", marks=pytest.mark.thorough)]
)
def test_a_run_survives_the_death_of_its_kernel(lab, what, source, count, who, tmp_path):
    run_id = lab.begin(source + GATE.format(gate=str(tmp_path / "gate")))
    wait_for(lambda: size_of(lab, run_id) > 500)
    lab.kill_kernel()
    if who == "another one attaches":
        said = lab.kernel.run("%cluster attach").stdout
        assert f"the run {run_id} is still running" in said and len(said.splitlines()) <= 2, said
    (tmp_path / "gate").touch()
    run = lab.await_end(run_id)
    assert (run.state, run.lines, run.notes) == ("done", 2 * count, [])
    for rank in (0, 1):
        assert_numbered(lab.store, run_id, rank, count)
    if who == "no one comes":
        assert "the run" not in lab.kernel.run("%cluster attach").stdout
    assert "ranks 0–1: 2" in lab.kernel.run("%distributed 1 + 1").text


@pytest.mark.fault(
    "the kernel is killed {times} times during one run, each second time as it attaches",
    "the record is complete, no line missing or twice",
)
@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.thorough)])
def test_a_run_survives_repeatedly_killed_kernels(lab, times, tmp_path):
    run_id = lab.begin(GATED.format(gate=str(tmp_path / "gate")))
    for turn in range(times):
        size = size_of(lab, run_id)
        if turn % 2:
            lab.kernel.client.execute("%cluster attach", allow_stdin=False)
            time.sleep(turn / times)
        else:
            said = lab.kernel.run("%cluster attach").stdout
            assert turn == 0 or f"the run {run_id} is still running" in said, said
        lab.kill_kernel()
        wait_for(lambda size=size: size_of(lab, run_id) > size + 500)
        assert lab.store.load(run_id).state == "running"
    said = lab.kernel.run("%cluster attach").stdout
    assert f"the run {run_id} is still running" in said, said
    (tmp_path / "gate").touch()
    run = lab.await_end(run_id)
    assert (run.state, run.notes) == ("done", [])
    counts = [assert_numbered(lab.store, run_id, rank) for rank in (0, 1)]
    assert run.lines == sum(counts)
    assert "ranks 0–1: 2" in lab.kernel.run("%distributed 1 + 1").text


@pytest.mark.fault(
    "the kernel is restarted during a run, and attaches while it goes on",
    "the run goes on in the record; it can be waited for and interrupted",
)
def test_a_restarted_kernel_attaches_to_the_run_and_interrupts_it(lab, tmp_path):
    run_id = lab.begin(GATED.format(gate=str(tmp_path / "gate")))
    wait_for(lambda: size_of(lab, run_id) > 500)
    lab.kernel.restart()
    before = size_of(lab, run_id)
    wait_for(lambda: size_of(lab, run_id) > before + 500)
    assert lab.store.load(run_id).state == "running"
    said = lab.kernel.run("%load_ext rankroom\n%cluster attach").stdout
    assert said.startswith("attached to lab: 2 ranks on ")
    assert said.endswith(f"the run {run_id} is still running: `%runs {run_id}` shows it\n")
    refused = lab.kernel.run("%distributed 1").error
    assert "busy with a run of a process that has ended" in refused
    lab.kernel.run("%cluster interrupt")
    run = lab.await_end(run_id)
    assert run.state == "interrupted"
    for rank in (0, 1):
        counted = int(lab.kernel.run(f"%ranks pull i\ni[{rank}]").text)
        # The interrupt may have come between a line and its count.
        assert assert_numbered(lab.store, run_id, rank) in (counted, counted + 1)


@pytest.mark.fault(
    "the kernel of a detached run is shut down, and no one comes until it is over",
    "the record grows meanwhile and is finished, `%runs` shows it, results are there",
)
def test_a_detached_run_finishes_without_a_kernel(lab, tmp_path):
    # The prompt is back while the run waits for the gate.
    run_id = lab.begin(GATED.format(gate=str(tmp_path / "gate")))
    lab.shut_down()
    try:
        before = size_of(lab, run_id)
        wait_for(lambda: size_of(lab, run_id) > before + 500)
        (tmp_path / "gate").touch()
        assert lab.await_end(run_id).state == "done"
        results = {
            event["rank"]: event["data"]["text/plain"]
            for event in lab.store.events(run_id)
            if event.get("result")
        }
        for rank in (0, 1):
            count = assert_numbered(lab.store, run_id, rank)
            assert results[rank] == f"'{count} lines'"
        assert ClusterPaths("lab").unfinished() == [], "the spool is cleared"
    finally:
        lab.open_again()
    assert "done" in next(
        line for line in lab.kernel.run("%runs").stdout.splitlines() if run_id in line
    )


@pytest.mark.fault(
    "the kernel is killed while ranks hang in a collective that one of them skips",
    "the run is explained all the same, and a client that attaches can interrupt it",
)
def test_a_hang_is_explained_after_its_kernel_was_killed(lab):
    run_id = lab.begin(
        "import torch, torch.distributed as dist\n"
        "if not dist.is_initialized(): dist.init_process_group('gloo')\n"
        "if rank == 0: dist.all_reduce(torch.ones(2))\n"
        "else:\n    import time; time.sleep(600)"
    )
    lab.kill_kernel()
    wait_for(lambda: lab.store.load(run_id).hang is not None)
    hang = lab.store.load(run_id).hang
    assert hang is not None and "rank 0 waits in dist.all_reduce" in hang.text, hang
    attached = Cluster.attach("lab")
    try:
        assert attached.latest is not None and attached.latest.id == run_id
        attached.interrupt()
        assert attached.latest.wait(60)
        assert attached.latest.state == "interrupted"
    finally:
        attached.close()


@pytest.mark.fault(
    "the kernel is killed during a run; one that was attached before runs a cell",
    "it is refused while the run goes on, can follow it, and its next cell works",
)
def test_another_kernel_is_refused_until_the_run_of_a_killed_one_ends(lab, tmp_path):
    beside = Cluster.attach("lab")
    try:
        run_id = lab.begin(GATED.format(gate=str(tmp_path / "gate")))
        with pytest.raises(RankroomError, match="busy with a run of another process"):
            beside.run("1")
        lab.kill_kernel()
        with pytest.raises(RankroomError, match="busy with a run of a process that has ended"):
            beside.run("1")
        following = Cluster.attach("lab")
        (tmp_path / "gate").touch()
        assert following.latest is not None and following.latest.wait(60)
        following.close()
        assert lab.await_end(run_id).state == "done"
        for rank in (0, 1):
            assert_numbered(lab.store, run_id, rank)
        run = beside.run("1 + 1")
        assert run.wait(60) and run.results == {0: "2", 1: "2"}
    finally:
        beside.close()


@pytest.mark.fault(
    "a kernel lets go of its cluster during a run, and lives on",
    "the run goes on; its own view of it ends, too",
)
def test_a_run_continues_after_its_client_detaches(lab, tmp_path):
    first = Cluster.attach("lab")
    run = first.run(GATED.format(gate=str(tmp_path / "gate")))
    wait_for(lambda: size_of(lab, run.id) > 500)
    first.close()
    assert lab.store.load(run.id).state == "running"
    second = Cluster.attach("lab")
    try:
        assert second.latest is not None
        assert (second.latest.id, second.latest.state) == (run.id, "running")
        (tmp_path / "gate").touch()
        assert second.latest.wait(60) and lab.store.load(run.id).state == "done"
        assert run.wait(60) and run.state == "done"
        for rank in (0, 1):
            assert_numbered(lab.store, run.id, rank)
    finally:
        second.close()


@pytest.mark.fault(
    "the kernel and one rank are killed during a run",
    "the record says how the rank ended; its last line is there",
)
def test_how_a_rank_was_killed_is_recorded_after_its_kernel_was_killed(lab, tmp_path):
    told = tmp_path / "pid"
    run_id = lab.begin(
        f"import os\nfrom pathlib import Path\n"
        f"if rank == 1: Path({str(told)!r}).write_text(str(os.getpid()))\n"
        + GATED.format(gate=str(tmp_path / "gate"))
    )
    # Wait for lines of the rank that will be killed.
    wait_for(lambda: written(lab.store, run_id, 1).count("\n") >= 10)
    lab.kill_kernel()
    os.kill(int(told.read_text()), signal.SIGKILL)
    (tmp_path / "gate").touch()
    run = lab.await_end(run_id)
    assert run.state == "failed" and run.failure is not None
    assert run.failure.evalue.startswith("rank 1 was killed by SIGKILL")
    assert [rank.state for rank in run.ranks] == ["ok", "lost"]
    spooled = (lab.home / "clusters/lab/spool/1/stdout").read_text()
    assert spooled.endswith(written(lab.store, run_id, 1))
    for rank in (0, 1):
        assert assert_numbered(lab.store, run_id, rank) >= 10


@pytest.mark.fault(
    "the kernel is killed, then all of its cluster",
    "the record is complete up to the ranks' last lines, and says how they ended",
)
def test_a_record_is_completed_after_kernel_and_cluster_were_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    store = Store(tmp_path)
    pid = os.fork()
    if pid == 0:  # a kernel that ends without cleaning up
        try:
            run = Cluster.local(ranks=2, name="gone").run(GATED.format(gate="/nonexistent"))
            wait_for(lambda: all(written(store, run.id, rank) for rank in (0, 1)))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (run_id,) = store.ids()
    info = ClusterPaths("gone").read()
    os.kill(info.supervisor, signal.SIGKILL)
    for rank in info.ranks:
        with contextlib.suppress(ProcessLookupError):  # without a supervisor they end by themselves
            os.kill(rank.pid, signal.SIGKILL)
    process_tree.end(own_processes(ClusterPaths("gone")), 0)
    wait_for(lambda: not any(psutil.pid_exists(rank.pid) for rank in info.ranks))
    assert store.load(run_id).state == "lost"
    spooled = [(ClusterPaths("gone").spool(rank) / "stdout").read_text() for rank in (0, 1)]
    # As the start of a new cluster of this name does.
    aside = ClusterPaths("gone").folder.rename(ClusterPaths("gone.1").folder)
    assert complete_all(store) == [run_id]
    assert not aside.exists()
    run = store.load(run_id)
    assert run.state == "failed" and run.failure.ename == "RankLost"
    assert "ended with its cluster" in run.failure.evalue
    assert [rank.state for rank in run.ranks] == ["lost", "lost"]
    for rank in (0, 1):
        assert assert_numbered(store, run_id, rank) > 0
        assert spooled[rank] == written(store, run_id, rank)
