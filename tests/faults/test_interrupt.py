"""An interrupt ends any cell on all ranks within 2 s, and the ranks keep their state."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import pytest

from cells import allowed, failure, finish, log, states, values
from kernel import Kernel
from rankroom.cluster.local import Cluster
from rankroom.errors import RankroomError
from rankroom.notebook.stop_button import deferred
from rankroom.record.store import Store

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timed,
    pytest.mark.fault(
        "an interrupt: {id}", "the cell ends on all ranks in 2 s, the ranks keep their state"
    ),
]

PROMISED_S = 2.0  # for each kind of cell
SECONDS = allowed(PROMISED_S)
SETUP = """
import asyncio, concurrent.futures, ctypes, gc, os, queue, select, socket, subprocess, sys
import threading, time
import torch, torch.distributed as dist
import horovod.torch as hvd
import tensorflow as tf
import horovod.tensorflow as hvd_tf

hvd.init(); hvd_tf.init(); dist.init_process_group("gloo")
ones = torch.ones(2)
kept = ["precious", rank]
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())

@tf.function
def graph_step(x):
    return hvd_tf.allreduce(x * 2.0)

def forever():
    threading.Event().wait()

def step():
    optimizer.zero_grad()
    model(ones).sum().backward()
    optimizer.step()

gc.collect(); gc.freeze()  # frameworks have so many objects that each later collection takes long
"""
# Frees what the last traceback refers to: a DataLoader freed in a later cell would wait 5 s there.
AFTER = """
sys.last_type = sys.last_value = sys.last_traceback = sys.last_exc = None
gc.collect()
dist.all_reduce(sent := ones.clone()); step()
[kept, sent[0].item(), hvd.allreduce(ones, op=hvd.Sum)[0].item(),
 graph_step(tf.constant(1.0)).numpy().item()]
"""

# What both ranks are executing when they are interrupted.
INSIDE = {
    "Python": "while True: pass",
    "Python that catches exceptions": """
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                pass
        """,
    "numbers in C": "while True: torch.mm(torch.ones(300, 300), torch.ones(300, 300))",
    "printing": "while True: print('x' * 100)",
    "time.sleep": "time.sleep(60)",
    "sleep of the C library": "ctypes.CDLL(None).sleep(60)",
    # PyDLL keeps the GIL: the sleep before it lets the thread that sends output run.
    "sleep of the C library with the interpreter's lock": """
        time.sleep(0.3)
        ctypes.PyDLL(None).sleep(60)
        """,
    "await": "await asyncio.sleep(60)",
    "Python in a cell that awaits": """
        await asyncio.sleep(0)
        while True: pass
        """,
    "printing in a task of a cell that awaits": """
        async def talk():
            while True: print("x" * 100)
        await asyncio.gather(talk(), asyncio.sleep(60))
        """,
    "a shell line in a cell that awaits": """
        await asyncio.sleep(0)
        !sleep 60
        """,
    "a pipe": "os.read(os.pipe()[0], 1)",
    "a socket": """
        here, there = socket.socketpair()
        here.recv(1)
        """,
    "select": "select.select([os.pipe()[0]], [], [])",
    "a lock": """
        lock = threading.Lock()
        lock.acquire(); lock.acquire()
        """,
    "an event": "threading.Event().wait()",
    "a queue": "queue.Queue().get()",
    "a thread's end": """
        thread = threading.Thread(target=forever, daemon=True)
        thread.start(); thread.join()
        """,
    "a future": """
        ready = concurrent.futures.Future()
        ready.result()
        """,
    "a subprocess": "subprocess.run(['sleep', '60'])",
    "a subprocess's output": "subprocess.check_output(['sleep', '60'])",
    "a shell line": "!sleep 60",
    "a shell line that does not end by itself": "!trap '' INT; while true; do sleep 1; done",
    "workers of a loader": """
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): time.sleep(60)
        next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
        """,
    "horovod.torch": "hvd.allreduce(ones) if rank == 0 else time.sleep(60)",
    "horovod.torch barrier": "hvd.barrier() if rank == 1 else forever()",
    "horovod optimizer": "step() if rank == 0 else time.sleep(60)",
    "horovod.tensorflow": "hvd_tf.allreduce(tf.ones(2)) if rank == 0 else time.sleep(60)",
    "a TensorFlow graph": "graph_step(tf.constant(1.0)) if rank == 0 else forever()",
    "torch.distributed": "dist.all_reduce(ones.clone()) if rank == 0 else time.sleep(60)",
    "torch.distributed barrier": "dist.barrier() if rank == 1 else forever()",
    "two libraries": "dist.barrier() if rank == 0 else hvd.barrier()",
    "a collective that catches exceptions": """
        try:
            hvd.allreduce(ones) if rank == 0 else time.sleep(60)
        except Exception as error:
            raise RuntimeError("wrapped") from error
        """,
}

# These would wait for user input, but a rank's stdin is empty, so they end by themselves.
READING = {
    "sys.stdin.read": ("sys.stdin.read()", ""),
    "sys.stdin.readline": ("sys.stdin.readline()", ""),
    "descriptor 0": ("os.read(0, 1)", b""),
    "a child that reads": ("subprocess.run(['cat'], capture_output=True).stdout", b""),
}


@pytest.fixture(scope="module")
def ready(frameworks):
    finish(frameworks, SETUP)
    assert values(frameworks, AFTER) == expected()
    return frameworks


def expected():
    return [[["precious", rank], 2.0, 2.0, 2.0] for rank in range(2)]


def until(condition, seconds: float = 60.0) -> None:
    """Wait for `condition()`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def inside(cluster: Cluster, source: str):
    """Start a run, and wait until each rank is about to execute `source`."""
    run = cluster.run("print('here', flush=True)\n" + dedent(source))
    try:
        until(lambda: all(log(run, rank) for rank in (0, 1)))
    except BaseException:
        run.interrupt()
        run.wait(60)
        raise
    return run


def demand_in_time(once: Callable[[], float], limit: float = SECONDS) -> float:
    """Repeat it until two of at most three times are below the limit, so that the median is; once
    is enough for the longer limit while other tests run beside this one."""
    taken = [once()]
    if SECONDS > PROMISED_S:
        assert taken[0] < limit
        return taken[0]
    while len(taken) < 3 and sum(each < limit for each in taken) < 2:
        taken.append(once())
    assert sum(each < limit for each in taken) == 2, taken
    return taken[-1]


# One of each kind; the others are variations, and run only with `--repeat`.
ALWAYS = {
    "Python", "time.sleep", "sleep of the C library",
    "sleep of the C library with the interpreter's lock", "await", "Python in a cell that awaits",
    "printing in a task of a cell that awaits", "a shell line in a cell that awaits", "a pipe",
    "a lock", "a subprocess", "a shell line", "workers of a loader", "horovod.torch",
    "horovod.tensorflow", "a TensorFlow graph", "torch.distributed", "two libraries",
}  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name, marks=[] if name in ALWAYS else pytest.mark.thorough)
        for name, source in INSIDE.items()
    ],
)
def test_an_interrupt_ends_the_cell_on_all_ranks(ready, source, record_property):
    def once() -> float:
        run = inside(ready, source)
        begun = time.monotonic()
        run.interrupt()
        if not run.wait(SECONDS):
            print("\n".join(["late:", *ready.stacks(run.running).values()]))
        # Less than the minute after which some cells would end by themselves.
        assert run.wait(30)
        took = time.monotonic() - begun
        assert run.state == "interrupted", failure(run)
        assert set(states(run).values()) <= {"interrupted", "released", "error"}
        assert values(ready, AFTER) == expected()
        return took

    record_property("ms", demand_in_time(once) * 1000)


@pytest.mark.parametrize("source", ["await asyncio.sleep(60)", "await asyncio.Event().wait()"])
def test_ranks_of_an_interrupted_async_cell_count_as_interrupted_not_failed(ready, source):
    run = inside(ready, source)
    run.interrupt()
    assert run.wait(30)
    assert run.state == "interrupted", failure(run)
    assert set(states(run).values()) == {"interrupted"}


def test_the_kinds_of_cells_that_are_always_interrupted_are_defined():
    assert INSIDE.keys() >= ALWAYS


@pytest.mark.parametrize(("source", "read"), READING.values(), ids=READING.keys())
def test_reading_standard_input_on_a_rank_returns_nothing_at_once(ready, source, read):
    assert values(ready, source) == [read, read]
    demand_in_time(lambda: finish(ready, source).duration)


@pytest.mark.parametrize("source", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_input_and_getpass_are_refused_instead_of_waiting(ready, source):
    def once() -> float:
        run = finish(ready, source)
        assert "cannot read an answer on a rank" in failure(run)
        return run.duration

    demand_in_time(once)
    assert values(ready, AFTER) == expected()


def test_a_cell_that_runs_on_one_of_two_ranks_is_interrupted(ready):
    run = ready.run("print('here', flush=True)\ntime.sleep(60)", ranks=[1])
    until(lambda: log(run, 1))
    run.interrupt()
    assert run.wait(30)
    assert states(run) == {1: "interrupted"}
    assert values(ready, AFTER) == expected()


def test_repeated_and_late_interrupts_are_harmless(ready):
    run = inside(ready, "dist.barrier() if rank == 0 else time.sleep(60)")
    run.interrupt()
    run.interrupt()
    assert run.wait(60)
    run.interrupt()
    assert values(ready, AFTER) == expected()


def test_an_interrupted_rank_runs_its_finally_block_and_keeps_its_variables(ready):
    """The cell's `finally` block runs, and the variables that it sets are kept."""
    run = inside(ready, "tidied = False\ntry:\n    time.sleep(60)\nfinally:\n    tidied = True")
    run.interrupt()
    assert run.wait(60)
    assert values(ready, "tidied") == [True, True]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    made = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    made.home = home
    try:
        assert made.run("%load_ext rankroom\n%cluster start --ranks 2").error == ""
        made.run("%%distributed\nimport time, torch, torch.distributed as dist; kept = [rank]\n"
                 "dist.init_process_group('gloo')")  # fmt: skip
        yield made
        made.run("%cluster stop")
    finally:
        made.close()


KERNEL = {
    "Python": "while True: pass",
    "time.sleep": "time.sleep(60)",
    "a collective": "dist.barrier() if rank == 0 else time.sleep(60)",
}


def texts(store: Store, before: set[str]) -> set[int]:
    """The ranks that have printed something in a run that is not in `before`."""
    new = [each for each in store.ids() if each not in before]
    return {e["rank"] for each in new for e in store.events(each) if e["kind"] == "log"}


@pytest.mark.parametrize("source", KERNEL.values(), ids=KERNEL.keys())
def test_the_stop_button_interrupts_the_run_and_returns_the_prompt(kernel, source):
    store = Store(kernel.home)
    cell = f"%%distributed\nprint('here', flush=True)\n{source}"

    def once() -> float:
        before = set(store.ids())
        pressed = []

        def press() -> None:
            until(lambda: texts(store, before) == {0, 1})
            pressed.append(time.monotonic())
            kernel.interrupt()

        # Pressed as soon as both ranks print, which may be before the notebook follows the run.
        presser = threading.Thread(target=press)
        shown = kernel.run(cell, after=presser.start)
        took = time.monotonic() - pressed[0]
        presser.join()
        assert shown.error == "interrupted; the ranks' variables are kept"
        assert shown.run["state"] == "interrupted"
        return took

    demand_in_time(once)
    assert "ranks 0–1: 2" in kernel.run("%distributed kept[0] * 0 + size").text


def test_a_second_press_of_the_stop_button_returns_the_prompt_at_once(kernel):
    store = Store(kernel.home)
    before = set(store.ids())
    slow = "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(4)"

    def press() -> None:
        until(lambda: texts(store, before) == {0, 1})
        kernel.interrupt()
        time.sleep(0.5)
        kernel.interrupt()

    presser = threading.Thread(target=press)
    cell = f"%%distributed -o slow\nprint('here', flush=True)\n{slow}"
    shown = kernel.run(cell, after=presser.start)
    presser.join()
    assert "ranks 0–1 did not stop within" in shown.error and "Traceback" not in shown.error
    assert shown.errors == 1
    assert kernel.run("slow.wait(60)").text == "True"
    assert "ranks 0–1: 2" in kernel.run("%distributed size").text


@pytest.mark.parametrize("source", KERNEL.values(), ids=KERNEL.keys())
def test_a_timeout_interrupts_a_run(kernel, source):
    def once() -> float:
        shown = kernel.run(f"%%distributed --timeout 0.5\n{source}")
        assert shown.error == "stopped after --timeout 0.5 s"
        assert shown.run["state"] == "interrupted"
        return (shown.run["end"] - shown.run["start"]) / 1e6

    demand_in_time(once, 0.5 + SECONDS)
    assert "rank 0: [0]" in kernel.run("%distributed kept").text


def test_an_unreached_timeout_has_no_effect_and_an_invalid_one_is_refused(kernel):
    assert kernel.run("%%distributed --timeout 30\n1").error == ""
    assert "invalid float value" in kernel.run("%%distributed --timeout x\n1").error


def test_an_interrupt_while_a_cell_is_being_sent_is_deferred():
    before = signal.getsignal(signal.SIGINT)
    with deferred() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: pressed)
    assert pressed == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: list(deferred().__enter__())).result() == []


def test_an_interrupt_without_a_run_does_nothing(ready):
    ready.interrupt()
    assert values(ready, AFTER) == expected()


def test_many_interrupts_between_two_cells_are_harmless(ready):
    """Hundreds of interrupts of idle ranks: none may stop a rank in the middle of a write."""
    for _ in range(500):
        for rank in ready.info.ranks:
            os.kill(rank.pid, signal.SIGINT)
    assert values(ready, AFTER) == expected()
    for rank in ready.info.ranks:  # no handler wrote anything: it could deadlock
        assert "SIGINT" not in ready.paths.rank_log(rank.rank).read_text()


def test_two_threads_may_interrupt_a_run_at_the_same_time(ready):
    """Two threads of one kernel interrupt at the same moment."""
    run = inside(ready, "hvd.barrier() if rank == 0 else forever()")
    errors = []

    def press() -> None:
        try:
            ready.interrupt()
        except RankroomError as error:
            errors.append(error)

    threads = [threading.Thread(target=press) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert run.wait(60)
    assert errors == []
    assert values(ready, AFTER) == expected()


def test_an_interrupt_that_python_drops_is_sent_again(ready):
    source = """
    class Dropping:
        def __del__(self):
            print("here", flush=True)
            time.sleep(60)
    dropping = Dropping()
    del dropping
    time.sleep(60)
    """
    run = ready.run(dedent(source))
    until(lambda: all(log(run, rank) for rank in (0, 1)))
    run.interrupt()
    assert run.wait(30)
    assert states(run) == {0: "interrupted", 1: "interrupted"}


def test_cleanup_after_an_interrupt_is_not_interrupted_again(ready):
    source = "tidied = 0\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(2.5)\n    tidied = 1"
    run = inside(ready, source)
    run.interrupt()
    assert run.wait(60) and run.state == "interrupted"
    assert values(ready, "tidied") == [1, 1]


@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "awaiting"])
def test_a_cell_that_catches_an_interrupt_is_not_interrupted_again(ready, awaits):
    """An interrupt is delivered once: what the cell does after catching it is not interrupted."""
    source = """
    began = saved = heard = 0
    try:
        began = 1
        time.sleep(60)
    except KeyboardInterrupt:
        heard += 1
    time.sleep(2.5)
    saved = 1
    """
    run = inside(ready, dedent(source) + ("await asyncio.sleep(0)\n" if awaits else ""))
    run.interrupt()
    assert run.wait(60) and run.state == "done"
    assert values(ready, "[heard, saved]") == [[1, 1], [1, 1]]


def test_a_sigint_handler_set_by_the_cell_is_called_once(ready):
    source = """
    heard = []
    before = signal.signal(signal.SIGINT, lambda *about: heard.append(1))
    print("ready", flush=True)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        time.sleep(0.05)
    signal.signal(signal.SIGINT, before)
    """
    run = ready.run("import signal\n" + dedent(source))
    until(lambda: all("ready" in log(run, rank) for rank in (0, 1)))
    run.interrupt()
    assert run.wait(60) and run.state == "done"
    assert values(ready, "len(heard)") == [1, 1]
