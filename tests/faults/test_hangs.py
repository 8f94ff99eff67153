"""Cells that really hang: explained within seconds, released, and the next cell works."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from statistics import median
from textwrap import dedent

import pytest

from cells import allowed, finish, log, states, values
from rankroom.cluster.local import Cluster
from rankroom.errors import UsageError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault(
        "a hang: {id}", "explained within seconds, let go, the ranks keep their state"
    ),
]

SETUP = """
import ctypes, os, subprocess, threading, time
import torch, torch.distributed as dist
import horovod.torch as hvd
import tensorflow as tf
import horovod.tensorflow as hvd_tf

hvd.init(); hvd_tf.init(); dist.init_process_group("gloo")
x = torch.ones(4)
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))  # the first imports for seconds
kept = ["precious", rank]

def train(steps):
    for step in range(steps):
        hvd.allreduce(x, name="grad")

@tf.function
def graph_step(x):
    return hvd_tf.allreduce(x * 2.0)
"""
ALL = """
dist.all_reduce(sent := x.clone())
[kept, sent[0].item(), hvd.allreduce(x, op=hvd.Sum)[0].item(),
 graph_step(tf.constant(1.0)).numpy().item()]
"""

COMPILER = "subprocess.call(['sh', '-c', 'ulimit -t {}; while :; do :; done'])"
OWN_LOCK = "a deadlock of the user's"


def either_first(one: str, other: str) -> str:
    """A pattern for both waits, with the duration of whichever began first."""
    return rf"(?:{one} for \d+ s; {other}|{one}; {other} for \d+ s)"


CASES = {
    "if rank == 0": (
        "y = 1\nif rank == 0:\n    hvd.allreduce(x, name='loss')",
        r"rank 0 waits in hvd.allreduce loss \(cell line 3\) for \d+ s; "
        r"rank 1 has finished the cell",
    ),
    "uneven batches": (
        "train(3 + rank)",
        r"rank 1 waits in hvd.allreduce grad \(cell line 1\) for \d+ s; "
        r"rank 0 has finished the cell",
    ),
    "different collectives": (
        "if rank == 0:\n    hvd.allreduce(x, name='a')\nelse:\n    hvd.allgather(x, name='b')",
        either_first(
            r"rank 0 waits in hvd.allreduce a \(cell line 2\)",
            r"rank 1 waits in hvd.allgather b \(cell line 4\)",
        )
        + ": different collectives, so each waits for the other",
    ),
    "different libraries": (
        "if rank == 0:\n    dist.barrier()\nelse:\n    hvd.barrier()",
        either_first(
            r"rank 0 waits in dist.barrier #1 \(cell line 2\)",
            r"rank 1 waits in hvd.barrier \(cell line 4\)",
        )
        + ": different collectives, so each waits for the other",
    ),
    "a rank that sleeps": (
        "if rank == 1:\n    time.sleep(60)\nhvd.allreduce(x)",
        r"rank 0 waits in hvd.allreduce #1 \(cell line 3\) for \d+ s; "
        r"rank 1 is stuck at cell line 2: `time.sleep\(60\)`",
    ),
    "an endless loop": (
        "if rank == 1:\n    while True:\n        pass\ndist.all_reduce(x)",
        r"rank 0 waits in dist.all_reduce #1 \(cell line 4\) for \d+ s; "
        r"rank 1 is at cell line [23]: `(while True:|pass)`",
    ),
    "an asynchronous collective": (
        "work = dist.all_reduce(x.clone(), async_op=True)\nif rank == 1:\n    time.sleep(60)\n"
        "work.wait()\ndist.all_reduce(x.clone(), async_op=True).wait()",
        r"rank 0 waits in dist.all_reduce #2 \(cell line 5\) for \d+ s; "
        r"rank 1 is stuck at cell line 3: `time.sleep\(60\)`",
    ),
    "gradients of a DDP model": (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "if rank == 1:\n    time.sleep(60)\nmodel(x).sum().backward()",
        r"rank 0 waits in dist.all_reduce of DistributedDataParallel \(cell line 4\) for \d+ s; "
        r"rank 1 is stuck at cell line 3: `time.sleep\(60\)`",
    ),
    OWN_LOCK: (
        "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        r"ranks 0–1 are stuck at cell line 3: `lock.acquire\(\)` for \d+ s",
    ),
    "TensorFlow, eager": (
        "if rank == 0:\n    hvd_tf.allreduce(tf.constant(1.0), name='metric')",
        r"rank 0 waits in hvd.allreduce metric \(cell line 2\) for \d+ s; "
        r"rank 1 has finished the cell",
    ),
    "TensorFlow, in a graph": (
        "if rank == 0:\n    graph_step(tf.constant(1.0))",
        r"rank 0 waits in hvd.allreduce \S+ \(cell line 2\) for \d+ s; "
        r"rank 1 has finished the cell",
    ),
    "a child process that computes": (
        f"if rank == 1:\n    {COMPILER.format(60)}\nhvd.allreduce(x)",
        r"rank 0 waits in hvd.allreduce #1 \(cell line 3\) for \d+ s; "
        r"rank 1 is at cell line 2 while a child process \(sh\) is computing: `subprocess.call.*`",
    ),
    "C code that keeps Python's lock": (
        "if rank == 1:\n    ctypes.PyDLL(None).sleep(60)\nhvd.allreduce(x)",
        r"rank 0 waits in hvd.allreduce #1 \(cell line 3\) for \d+ s; rank 1 does not respond .*",
    ),
}


@pytest.fixture(scope="module")
def ready(frameworks):
    finish(frameworks, SETUP)
    values(frameworks, ALL)
    return frameworks


def hang_of(cluster, run, words, seconds=60):
    """The hang in the record, once its explanation matches `words`.

    While a rank is still on its way to where it hangs, or slow to reply, the explanation differs.
    """
    until = time.monotonic() + seconds
    said = None
    while time.monotonic() < until and not run.wait(0.05):
        hang = cluster.store.load(run.id).hang
        if hang is not None and re.fullmatch(words, said := hang.text):
            return hang
    raise AssertionError(f"no such explanation in {seconds} s, but {said!r}: {run}")


def free(cluster, run):
    with contextlib.suppress(UsageError):
        cluster.release()
    if not run.wait(1):
        cluster.interrupt()
    assert run.wait(60)


# From the cell's start to the explanation in the record.
PATIENCE_S = 4.0  # the default of RANKROOM_HANG_SECONDS
EXPLAINED_S = allowed(10.0)  # the limit for each kind
USUALLY_S = allowed(6.0)  # the limit for the median


@pytest.fixture(scope="module")
def explained() -> Iterator[list[float]]:
    """How many seconds each explanation took; at the end, their median must be short."""
    taken: list[float] = []
    yield taken
    assert median(taken) < USUALLY_S, taken


THOROUGH = {"different libraries", "uneven batches", "TensorFlow, eager"}


@pytest.mark.timed
@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.thorough if name in THOROUGH else [])
        for name, case in CASES.items()
    ],
)
def test_a_hang_is_explained_and_released(ready, explained, source, words, record_property):
    run = ready.run(source)
    try:
        hang = hang_of(ready, run, words)
    finally:
        seconds = time.time() - run.info.start / 1e6
        free(ready, run)
    explained.append(seconds)
    record_property("ms", seconds * 1000)
    assert PATIENCE_S < seconds < EXPLAINED_S
    assert sorted(rank for place in hang.places for rank in place.ranks) == [0, 1]
    after = ready.store.load(run.id)
    assert after.hang is None
    # The note describes the hang before the release, not where the ranks were during it.
    stuck = f"the run was stuck: {words}"
    assert any(re.fullmatch(stuck, note) for note in after.notes), after.notes
    assert values(ready, ALL) == [[["precious", rank], 2.0, 2.0, 2.0] for rank in range(2)]


def test_rankroom_hang_seconds_sets_when_a_hang_is_reported(home, monkeypatch):
    monkeypatch.setenv("RANKROOM_HANG_SECONDS", "7")
    cluster = Cluster.local(ranks=1)
    try:
        run = cluster.run(f"import threading\n{CASES[OWN_LOCK][0]}")
        hang_of(cluster, run, r"rank 0 is stuck at cell line 4: `lock.acquire\(\)` for \d+ s")
        assert time.time() - run.info.start / 1e6 > 7
        free(cluster, run)
    finally:
        cluster.stop()


def test_a_slow_rank_is_reported_but_not_released(ready, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    run = ready.run(
        f"if rank == 1:\n    open({str(gate)!r}).read()\nhvd.allreduce(x, op=hvd.Sum).tolist()"
    )
    hang_of(ready, run, ".*rank 1 is stuck at cell line 2.*")
    gate.write_text("go on")
    assert run.wait(60) and run.state == "done"
    assert run.results[0] == "[2.0, 2.0, 2.0, 2.0]"
    assert ready.store.load(run.id).hang is None


def test_short_waits_in_each_step_are_not_a_hang(ready):
    """The waits add up to more than the time after which a run counts as stuck."""
    source = "for i in range(6):\n    time.sleep(1.2 * rank)\n    hvd.allreduce(x)"
    run = finish(ready, source)
    assert run.state == "done" and run.info.notes == []


@pytest.mark.parametrize(
    "source",
    [
        COMPILER.format(7),
        # As in frameworks whose threads compute for the main one.
        pytest.param(
            "done = threading.Event()\n"
            "def work(until=time.time() + 7):\n"
            "    while time.time() < until:\n"
            "        sum(range(100_000))\n"
            "    done.set()\n"
            "threading.Thread(target=work).start()\n"
            "done.wait()",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["a child process", "another thread"],
)
def test_waiting_for_a_computing_child_or_thread_is_not_a_hang(ready, source):
    run = finish(ready, source, ranks=[0])
    assert run.state == "done" and run.info.notes == []
    assert run.duration > 6


def stacks(cluster, ranks, words, seconds=60):
    """The ranks' stacks, once all match `words`; those of a slow rank differ at first."""
    until = time.monotonic() + seconds
    while True:
        texts = list(cluster.stacks(ranks).values())
        if all(re.fullmatch(words, text, re.DOTALL) for text in texts):
            return texts
        assert time.monotonic() < until, texts


def test_stacks_show_all_user_threads_of_all_ranks(ready):
    source = dedent("""
        def wait_here():
            threading.Event().wait(300)
        thread = threading.Thread(target=wait_here, name="loader", daemon=True)
        thread.start()
        thread.join()
    """)
    run = ready.run(source)
    hang_of(ready, run, "ranks 0–1 are stuck at .*")
    for text in stacks(ready, [0, 1], "MainThread:.*"):
        main, loader = text.split("\n\n")
        assert main.startswith("MainThread:") and "thread.join()" in main
        assert loader.startswith("loader:") and "threading.Event().wait(300)" in loader
        assert "zmq" not in text
    ready.interrupt()
    assert run.wait(60) and states(run) == {0: "interrupted", 1: "interrupted"}


def test_stacks_are_shown_for_a_rank_stuck_in_c_code(ready, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    source = f"""
        def inner():
            ctypes.PyDLL(None).open({os.fsencode(gate)!r}, os.O_RDONLY)
        if rank == 1:
            inner()
        dist.barrier()
    """
    run = ready.run(dedent(source))
    try:
        hang = hang_of(ready, run, "rank 0 waits in dist.barrier .*; rank 1 does not respond .*")
        assert [place.state for place in hang.places if 1 in place.ranks] == ["silent"]
        stacks(ready, [1], ".*line 2 in inner.*line 4 in <module>.*")
    finally:
        # Kept open until the run is over, so that the rank's open() returns whenever it is called.
        opened = os.open(gate, os.O_RDWR)
        over = run.wait(60)
        os.close(opened)
    assert over and run.state == "done" and log(run, 1, "stderr") == ""


def test_collectives_work_again_after_a_release_during_a_successful_run(ready, tmp_path):
    """Although the run succeeds after it, the next cell must set Horovod up again."""
    gate = tmp_path / "gate"
    run = ready.run(f"print(1)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n1")
    while not all(log(run, rank) for rank in (0, 1)):
        assert not run.wait(0.05)
    assert "released" in ready.release()
    gate.touch()
    assert run.wait(60) and run.state == "done"
    assert values(ready, ALL) == [[["precious", rank], 2.0, 2.0, 2.0] for rank in range(2)]


def test_releasing_idle_ranks_is_refused(ready):
    with pytest.raises(UsageError, match=r"no rank is running a cell: there is nothing to release"):
        ready.release()
