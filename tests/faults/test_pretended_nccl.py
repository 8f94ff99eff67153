"""A simulated NCCL group: collectives run on the GPU, and end only by an abort, without an error.

Real NCCL is tested by `bench/gpu.sh`.
"""

import re
import time

import pytest
from test_hangs import free, hang_of

from cells import finish, log, states, values
from rankroom.cluster.local import Cluster
from spanned import spans

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("NCCL's collectives are aborted", "the cell ends there, and the next works"),
]

# A simulated GPU: `synchronize()` polls until its collectives have ended, as the driver does.
# `is_busy` always holds, as if the cell's own kernels kept the GPU busy.
PRETEND = """
import threading, time
import torch, torch.distributed as dist
from rankroom.rank.frameworks.torch import torch_adapter, torch_device, torch_internals
dist.init_process_group("gloo")
aborted = threading.Event()
on_gpu = 0  # collectives whose results are not there yet
def abort(c10d):
    global on_gpu
    time.sleep(ABORT_TAKES)
    on_gpu = 0
    aborted.set()
class Event:
    def record(self, stream): pass
    def query(self): return on_gpu == 0
def all_reduce():
    global on_gpu
    on_gpu += 1
    torch_device.end(torch_device.Followed(Event(), Event()), "dist.all_reduce #1", -1)
def synchronize():
    while on_gpu and not aborted.wait(0.01):
        pass
torch_internals.uses_nccl = lambda c10d: True
torch_internals.abort = abort
torch_device.is_busy = lambda device: True
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        cluster = Cluster.local(ranks=2)
        yield cluster
        cluster.stop()


def test_a_cell_does_not_continue_after_its_collective_is_aborted(ranks):
    finish(ranks, PRETEND.replace("ABORT_TAKES", "0"))
    run = finish(
        ranks,
        """
        after = []
        if rank == 1:
            time.sleep(0.3)
            raise ValueError("mine")
        all_reduce()
        synchronize()
        after.append("goes on")
        """,
    )
    assert states(run) == {0: "released", 1: "error"}
    assert run.info.failure.ename == "ValueError"
    assert values(ranks, "after") == [[], []]
    sums = "dist.all_reduce(one := torch.ones(1)); one.item()"
    assert values(ranks, sums) == [2.0, 2.0]


def test_a_rank_whose_gpu_is_in_no_collective_finishes_its_cell(ranks):
    finish(ranks, PRETEND.replace("ABORT_TAKES", "0"))
    run = finish(
        ranks,
        """
        if rank == 1:
            raise ValueError("mine")
        until = time.time() + 2
        while time.time() < until:
            pass
        "saved"
        """,
    )
    assert states(run) == {0: "ok", 1: "error"}
    assert run.results[0] == "'saved'"


def test_an_async_cell_is_released_when_another_rank_fails(ranks):
    finish(ranks, PRETEND.replace("ABORT_TAKES", "0"))
    run = finish(
        ranks,
        """
        import asyncio
        all_reduce()
        if rank == 1:
            raise ValueError("mine")
        await asyncio.sleep(60)
        """,
    )
    assert states(run) == {0: "released", 1: "error"}
    errors = {each["rank"]: each["ename"] for each in run.events if each["kind"] == "error"}
    assert errors == {0: "ReleasedError", 1: "ValueError"}


def test_an_interrupted_rank_counts_as_interrupted_not_released(ranks):
    finish(ranks, PRETEND.replace("ABORT_TAKES", "0"))
    run = ranks.run("all_reduce()\nprint('on')\nsynchronize()\nthreading.Event().wait(60)")
    until = time.monotonic() + 30
    while not all(log(run, rank) for rank in (0, 1)):
        assert time.monotonic() < until and not run.wait(0.05)
    ranks.interrupt()
    assert run.wait(20)
    assert states(run) == {0: "interrupted", 1: "interrupted"}
    assert values(ranks, "rank") == [0, 1]


def test_an_abort_that_hangs_fails_the_next_cell_with_a_remedy(ranks):
    finish(ranks, PRETEND.replace("ABORT_TAKES", "3600 if rank == 0 else 0"))
    run = finish(ranks, "if rank == 1:\n    raise ValueError('mine')\nall_reduce()\nsynchronize()")
    assert states(run)[1] == "error"
    after = finish(ranks, "rank")
    assert after.state == "failed"
    said = after.info.failure.evalue
    assert "NCCL could not abort the work on the GPU of rank 0" in said
    assert "`%cluster restart --ranks 0`" in said
    ranks.restart([0])
    assert values(ranks, "rank") == [0, 1]


# The first of a collective's two events is complete: the GPU waits in it for its peers.
WAITS = """
import hashlib
from types import SimpleNamespace
from rankroom.rank.frameworks.torch import torch_device
class Event:
    def __init__(self, done): self.query = lambda: done
    def record(self, stream): pass
def all_reduce():
    followed = torch_device.Followed(Event(True), Event(False))
    torch_device.end(followed, "dist.all_reduce #1", -1)
def synchronize(rounds):
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
"""


def test_a_hang_on_the_gpu_is_explained_although_the_cpu_is_busy(ranks):
    finish(ranks, WAITS)
    words = (
        r"rank 0 waits in dist.all_reduce #1 on its GPU \(cell line 3\) for \d+ s; "
        r"rank 1 has finished the cell"
    )
    # pbkdf2_hmac computes in C without executing Python, like a driver that spins.
    run = ranks.run("if rank == 0:\n    all_reduce()\n    synchronize(30_000_000)")
    try:
        hang = hang_of(ranks, run, words, seconds=20)
    finally:
        free(ranks, run)
    assert re.search("waits in dist.all_reduce", hang.text)
    assert values(ranks, "rank") == [0, 1]


def test_a_gpu_that_computes_is_no_hang(ranks):
    finish(ranks, WAITS.replace("Event(True)", "Event(False)"))
    run = finish(
        ranks,
        """
        import time
        all_reduce()
        until = time.monotonic() + 6  # seconds, however fast the processor is
        while time.monotonic() < until:
            synchronize(12_000_000)
        """,
        ranks=[0],
    )
    assert run.state == "done" and run.info.notes == []
    assert run.duration > 5


# A model whose gradients are averaged on a simulated GPU: events complete as they are recorded.
MODEL = """
import threading, time
import torch, torch.distributed as dist
from rankroom.rank.frameworks.torch import torch_ddp, torch_ddp_group, torch_device
dist.init_process_group("gloo")
torch_ddp.watched_group = lambda group: None
order = []
class Event:
    def __init__(self, enable_timing): self.at = None
    def record(self, stream):
        self.at = time.monotonic()
        if stream is None: order.append("event")
    def synchronize(self): pass
    def query(self): return self.at is not None
    def elapsed_time(self, other): return 1000 * (other.at - self.at)
class Stream:
    def __init__(self, device): pass
    def query(self): return True
pretended = {
    "Event": Event, "current_stream": lambda device: None, "Stream": Stream,
    "is_current_stream_capturing": lambda: False,
}
class Loss(torch.Tensor):
    is_cuda = True
class pretending:
    def __enter__(self):
        self.before = {name: getattr(torch.cuda, name) for name in pretended}
        vars(torch.cuda).update(pretended)
    def __exit__(self, *error):
        vars(torch.cuda).update(self.before)
net = torch.nn.Linear(4, 1)
net.weight.register_post_accumulate_grad_hook(lambda weight: order.append("gradient"))
model = torch.nn.parallel.DistributedDataParallel(net)
def step():
    with pretending():
        loss = model(torch.ones(2, 4)).sum().as_subclass(Loss)
        torch.autograd.backward(loss)
"""


def test_gpu_events_bracket_the_averaging_of_ddp_gradients(ranks):
    finish(ranks, MODEL)
    source = """
        step()
        order, [each.what for each in torch_device._followed], net.weight.grad.tolist()
    """
    for order, followed, gradient in values(ranks, source):
        # Events: the pass begins, all gradients are ready, all gradients are averaged.
        assert order == ["event", "gradient", "event", "event"]
        assert followed == ["dist.all_reduce of DistributedDataParallel"]
        assert gradient == [[2.0] * 4]
    # Its span in the timeline includes the wait for the other rank, and has the number of bytes.
    run = finish(ranks, "step()\nif rank == 1:\n    time.sleep(1.0)\nstep()")
    first, second = (
        [each for each in spans(run, rank, "collective") if each.name == "all_reduce gradients"]
        for rank in (0, 1)
    )
    assert len(first) == len(second) == 2
    assert first[1].end - first[1].start > 900_000 > 300_000 > second[1].end - second[1].start
    assert first[1].about["bytes"] == 20 == 4 * (4 + 1)
    finish(ranks, "step()")  # in the second step, all ranks agree on DDP's new gradient buckets
    # Rank 0 is stuck in DDP's reducer, which runs after the second event.
    run = ranks.run("del order[:]\nif rank == 1:\n    threading.Event().wait(60)\nstep()")
    try:
        hang_of(ranks, run, ".*rank 1 is stuck at cell line 3.*")
    finally:
        free(ranks, run)
    # The last event was recorded when the interrupt ended the pass.
    assert values(ranks, "order")[0] == ["event", "gradient", "event", "event"]


def test_spans_of_collectives_are_timed_on_the_gpu(ranks):
    finish(ranks, MODEL)
    source = """
        torch_device.device_of = lambda tensor: "cuda:0"
        one = torch.ones(1)
        try:
            with pretending():
                if rank == 1:
                    time.sleep(0.5)
                dist.all_reduce(one)
                work = dist.all_reduce(one, async_op=True)
                if rank == 0:
                    time.sleep(0.5)
                work.wait()
                del order[1:-1]
        finally:
            torch_device.device_of = lambda tensor: None
        one.item(), order
    """
    run = finish(ranks, source)
    assert run.results == {0: "(4.0, ['event', 'event'])", 1: "(4.0, ['event', 'event'])"}
    first, second = (spans(run, rank, "collective") for rank in (0, 1))
    assert [each.name for each in first] == ["all_reduce #1", "all_reduce #2"]
    assert [each.name for each in second] == ["all_reduce #1", "all_reduce #2"]
    took = [[each.end - each.start for each in every] for every in (first, second)]
    assert took[0][0] > 400_000 > 200_000 > took[1][0]
    # The asynchronous collective's span excludes the 0.5 s before rank 0 waits for it.
    assert took[0][1] < 200_000 > took[1][1]
