"""A machine cannot start processes or threads for a while: those already running go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cells import finish, states, values
from numbered import GATED, assert_numbered, written
from rankroom.cluster.local import Cluster
from rankroom.errors import StartError
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster

# RLIMIT_NPROC does not apply to root; the limit of a control group does.
GROUPS = next(
    (each for each in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")) if each.is_dir()), None
)


@contextlib.contextmanager
def no_more(pid: int) -> Iterator[None]:
    """Keep a process from starting any thread or process."""
    if GROUPS is None:
        pytest.skip("there are no control groups here")
    own = GROUPS / f"rankroom-{pid}"
    try:
        own.mkdir()
        (own / "pids.max").write_text("1")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    [before] = [line.split(":", 2)[2] for line in lines if line.split(":")[1] in ("pids", "")][:1]
    (own / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (GROUPS / before.lstrip("/") / "cgroup.procs").write_text(str(pid))
        own.rmdir()


@pytest.fixture
def two(home: Path) -> Iterator[Cluster]:
    made = Cluster.local(ranks=2)
    yield made
    made.stop()


@pytest.mark.fault(
    "the process that forks ranks can fork none", "no rank ends, and the one that is down says why"
)
def test_other_ranks_survive_a_restart_whose_fork_fails(two: Cluster):
    values(two, "kept = rank")
    supervisor = psutil.Process(two.refresh().supervisor)
    [forks] = [p for p in supervisor.children() if "rankroom.agent.node_agent" in p.cmdline()]
    with no_more(forks.pid):
        with pytest.raises(StartError, match=r"rank 1 could not be started: .*unavailable"):
            two.restart([1])
        assert values(two, "kept", ranks=[0]) == [0]
    two.restart([1])
    assert values(two, "'kept' in globals()") == [True, False]


@pytest.mark.fault(
    "the supervisor can start no thread during a run",
    "the run ends as ever, and the next one works",
)
def test_runs_end_normally_while_the_supervisor_cannot_start_threads(two: Cluster, tmp_path: Path):
    gate = tmp_path / "gate"
    run = two.run(GATED.format(gate=str(gate)))
    assert poll_until(lambda: written(two.store, run.id, 1).count("\n") > 20, 60)
    with no_more(two.refresh().supervisor):
        gate.touch()
        assert run.wait(60) and run.state == "done", run.info
        for rank, text in run.results.items():
            assert_numbered(two.store, run.id, rank, int(text.strip("'").split()[0]))
        # A peer that waits for the one that failed is released.
        waits = finish(
            two,
            """
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            if rank:
                raise ValueError("on purpose")
            dist.all_reduce(torch.ones(1))
            """,
        )
        assert states(waits) == {0: "released", 1: "error"}
        assert waits.info.failure is not None and waits.info.failure.rank == 1
        endless = two.run("import time\nprint(1)\nwhile True: time.sleep(0.1)")
        assert poll_until(lambda: bool(written(two.store, endless.id, 1)), 60)
        two.interrupt()
        assert endless.wait(60) and endless.state == "interrupted"
    assert values(two, "rank") == [0, 1]
    found = two.stacks()
    assert sorted(found) == [0, 1] and all(found.values())
