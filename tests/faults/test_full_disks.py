"""A disk fills up during a run: the run goes on, says so, and loses no line."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cells import failure, states
from numbered import assert_numbered
from rankroom.cluster.local import Cluster
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster

# Prints in steps that the test starts, so that the test decides which disk is full during each.
STEPS = """
import os, signal, time
from pathlib import Path
i = 0
for step in range(4):
    while not Path({steps!r}, str(step)).exists():
        time.sleep(0.005)
    for _ in range(5_000):
        print("line", i)
        i += 1
    for _ in range(20):
        print("line", i)
        i += 1
        time.sleep(0.005)
    if rank == 1 and step == {killed_after}:
        os.kill(os.getpid(), signal.SIGKILL)
    Path({steps!r}, f"{{step}}.{{rank}}").touch()
"""
A_STEP = 5_020


class SmallDisk:
    """A file system of 4 MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        argv = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "rankroom-test", str(folder)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"no small disk can be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")

    def fill(self) -> None:
        with (self.folder / "filler").open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture(params=["clusters", "runs"])
def disk(request, home) -> Iterator[SmallDisk]:
    """Either the ranks' spools or the records are on a small disk."""
    made = SmallDisk(home / request.param)
    yield made
    made.unmount()


@pytest.fixture
def ranks(disk) -> Iterator[Cluster]:
    made = Cluster.local(ranks=2)
    yield made
    made.stop()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


def make_step(steps: Path, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
    (steps / str(step)).touch()
    wait_for(lambda: all((steps / f"{step}.{rank}").exists() for rank in ranks))


def begin(ranks: Cluster, steps: Path, killed_after: int | None = None) -> Run:
    return ranks.run(STEPS.format(steps=str(steps), killed_after=killed_after))


@pytest.mark.fault(
    "the disk of the ranks' spools is full for a while",
    "no print fails, no line is missing; the record says that it was so",
)
@pytest.mark.parametrize("disk", ["clusters"], indirect=True)
def test_a_temporarily_full_spool_disk_loses_no_line(ranks, disk, tmp_path):
    run = begin(ranks, tmp_path)
    make_step(tmp_path, 0)
    disk.fill()
    make_step(tmp_path, 1)
    make_step(tmp_path, 2)
    disk.free()
    (tmp_path / "3").touch()
    assert run.wait(120) and run.state == "done", failure(run)
    for rank in (0, 1):
        assert_numbered(ranks.store, run.id, rank, 4 * A_STEP)
        assert any(
            note.startswith(f"rank {rank}: No space left on device: ") for note in run.info.notes
        )
    assert run.info.lines == 8 * A_STEP
    assert not any("lost" in note for note in run.info.notes)


@pytest.mark.fault(
    "a rank is killed while the disk of its spool is full", "its last line is in the record"
)
@pytest.mark.parametrize("disk", ["clusters"], indirect=True)
def test_a_rank_killed_while_the_spool_disk_is_full_loses_no_line(ranks, disk, tmp_path):
    run = begin(ranks, tmp_path, killed_after=1)
    make_step(tmp_path, 0)
    disk.fill()
    (tmp_path / "1").touch()
    wait_for(lambda: (tmp_path / "1.0").exists())
    disk.free()
    for step in (2, 3):
        (tmp_path / str(step)).touch()
    assert run.wait(120)
    assert states(run) == {0: "ok", 1: "lost"}
    assert_numbered(ranks.store, run.id, 0, 4 * A_STEP)
    assert_numbered(ranks.store, run.id, 1, 2 * A_STEP)


def spooled(ranks: Cluster, run: Run, rank: int) -> list[str]:
    """The lines of the log events in a rank's spool."""
    events = (ranks.paths.spool(rank) / f"{run.id}.jsonl").read_bytes().splitlines()
    return "".join(json.loads(event).get("text", "") for event in events).splitlines()


@pytest.mark.fault(
    "the disk of the records is full for a while",
    "the run goes on; when there is room again, the record has every line",
)
@pytest.mark.parametrize("disk", ["runs"], indirect=True)
def test_a_temporarily_full_record_disk_loses_no_line(ranks, disk, tmp_path):
    run = begin(ranks, tmp_path)
    make_step(tmp_path, 0)
    disk.fill()
    make_step(tmp_path, 1)
    make_step(tmp_path, 2)
    disk.free()
    (tmp_path / "3").touch()
    assert run.wait(120) and run.state == "done"
    assert run.info.notes == [] and run.info.lines == 8 * A_STEP
    for rank in (0, 1):
        assert_numbered(ranks.store, run.id, rank, 4 * A_STEP)


@pytest.mark.fault(
    "the disk of the records is full until after the run",
    "the run ends and says what is missing, the spools keep it, and the record gets it later",
)
@pytest.mark.parametrize("disk", ["runs"], indirect=True)
def test_a_record_is_completed_from_the_spools_once_its_disk_has_room(ranks, disk, tmp_path):
    run = begin(ranks, tmp_path)
    make_step(tmp_path, 0)
    disk.fill()
    for step in (1, 2, 3):
        (tmp_path / str(step)).touch()
    assert run.wait(120) and run.state == "done"
    assert [note.partition(";")[0] for note in run.info.notes] == [
        f"cannot write the record in {run.path}: No space left on device"
    ]
    for rank in (0, 1):
        assert spooled(ranks, run, rank) == [f"line {i}" for i in range(4 * A_STEP)]
    disk.free()
    wait_for(lambda: ranks.store.load(run.id).state == "done")
    assert ranks.store.load(run.id).notes == []
    for rank in (0, 1):
        assert_numbered(ranks.store, run.id, rank, 4 * A_STEP)
        wait_for(lambda rank=rank: not (ranks.paths.spool(rank) / f"{run.id}.jsonl").exists())


@pytest.mark.fault(
    "a rank ends while the disk of its cluster is full",
    "the cluster goes on; how the rank ended is written when there is room",
)
@pytest.mark.parametrize("disk", ["clusters"], indirect=True)
def test_how_a_rank_ended_is_recorded_once_the_disk_has_room(ranks, disk):
    disk.fill()
    gone = psutil.Process(ranks.info.ranks[1].pid)
    gone.kill()
    wait_for(lambda: not gone.is_running())
    time.sleep(0.5)  # the supervisor checks ten times a second, and cannot write what it finds
    assert "1" not in ranks.paths.read().exits and ranks.running
    disk.free()
    wait_for(lambda: "1" in ranks.paths.read().exits)
    assert "SIGKILL" in ranks.paths.read().exits["1"]
    run = ranks.run("rank", [0])
    assert run.wait(60) and run.results == {0: "0"}
