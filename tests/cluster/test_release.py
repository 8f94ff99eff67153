"""When a rank fails, the others are released in every framework, and the next cell works."""

import time
from statistics import median

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster
from rankroom.run.run import Run

pytestmark = pytest.mark.cluster

AT_ONCE_S = 0.1  # from a rank's error to the release of the rank that waits for it
BUSY_S = 5.0  # the same for a single attempt on a busy machine

SETUP = """
import time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import horovod.torch as hvd
import tensorflow as tf
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_keras

hvd.init(); hvd_tf.init(); dist.init_process_group("gloo")
kept = ["precious", rank]
ones = torch.ones(2)
torch.manual_seed(1)
net = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters())
ddp = DDP(torch.nn.Linear(2, 1))
keras_model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
keras_model.compile(optimizer=hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)),
                    loss="mse")
fit = lambda epochs, *callbacks: keras_model.fit(
    tf.ones((16, 2)), tf.ones((16, 1)), batch_size=4, epochs=epochs, verbose=0,
    callbacks=[hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), *callbacks])
weights = lambda: keras_model.get_weights()[0]

def horovod_step():
    optimizer.zero_grad()
    net(ones).sum().backward()
    optimizer.step()
    return hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item()

def ddp_step():
    ddp.zero_grad()
    ddp(ones).sum().backward()
    return ddp.module.weight.grad[0].tolist()

@tf.function
def graph_step(x):
    return hvd_tf.allreduce(x * 2.0, op=hvd_tf.Sum)

class FailLate(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if rank == 1 and batch == 2:
            raise ValueError("mine")
"""

# Uses every framework once; the result is the same on both ranks.
ALL = """
fit(1)
[kept[0], horovod_step(), ddp_step(), graph_step(tf.constant(1.0)).numpy().item(),
 hvd_tf.allreduce(tf.constant(1.0), op=hvd_tf.Sum).numpy().item(),
 hvd.allreduce(ones, op=hvd.Sum).tolist(), dist.all_reduce(sent := ones.clone()) or sent.tolist(),
 bool(abs(weights() - hvd_tf.broadcast_object(weights())).max() < 1e-6)]
"""
EXPECTED = ["precious", 2.0, [1.0, 1.0], 4.0, 2.0, [2.0, 2.0], [2.0, 2.0], True]

BLOCKED = {
    "horovod.torch": "hvd.allreduce(ones)",
    "horovod.torch optimizer": "[horovod_step() for _ in range(10)]",
    "horovod.torch barrier": "hvd.barrier()",
    "tensorflow eager": "hvd_tf.allreduce(tf.constant(1.0))",
    "tensorflow graph": "graph_step(tf.constant(1.0))",
    "torch.distributed": "dist.all_reduce(ones.clone())",
    "torch.distributed object": "dist.broadcast_object_list([None], src=1)",
    "DDP backward": "ddp_step()",
    "first hvd.init()": "hvd.shutdown(); hvd.init()",
    "dist.new_group()": "dist.new_group([0, 1])",
}


@pytest.fixture(scope="module")
def ready(frameworks):
    finish(frameworks, SETUP)
    assert values(frameworks, ALL) == [EXPECTED] * 2
    return frameworks


def let_go(ready: Cluster, blocked: str) -> float:
    """Return the seconds from one rank's error to the release of the rank that waits for it."""
    run = finish(
        ready,
        f"""
        try:
            if rank == 1:
                time.sleep(0.3)  # the other waits by then
                raised = time.time()
                raise ValueError("mine")
            {blocked}
        finally:
            let_go = time.time()
        """,
        20,
    )
    assert failure(run) == "rank 1: ValueError: mine"
    assert states(run) == {0: "released", 1: "error"}
    released, raised = values(ready, "raised if rank == 1 else let_go")
    return released - raised


@pytest.mark.parametrize("blocked", BLOCKED.values(), ids=BLOCKED.keys())
def test_a_rank_that_raises_releases_the_waiting_rank(ready, blocked):
    assert 0 < let_go(ready, blocked) < BUSY_S
    assert values(ready, ALL) == [EXPECTED] * 2


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.parametrize("name", ["horovod.torch", "tensorflow graph", "torch.distributed"])
def test_a_waiting_rank_is_released_within_a_tenth_of_a_second(ready, name):
    taken = [let_go(ready, BLOCKED[name]) for _ in range(7)]
    assert 0 < median(taken) < AT_ONCE_S, taken
    assert values(ready, ALL) == [EXPECTED] * 2


def test_a_rank_that_raises_releases_the_other_from_keras_fit(ready):
    run = finish(ready, "fit(3, FailLate())", 30)
    assert failure(run) == "rank 1: ValueError: mine"
    assert states(run) == {0: "released", 1: "error"}
    assert values(ready, ALL) == [EXPECTED] * 2


def test_collectives_work_again_after_ranks_failed_at_different_places(ready):
    """No rank is blocked, but rank 0 has submitted collectives that rank 1 has not."""
    source = """
    handles = [hvd.allreduce_async(ones)] if rank == 0 else []
    work = dist.all_reduce(ones.clone(), async_op=True) if rank == 0 else None
    raise ValueError("both")
    """
    assert states(finish(ready, source)) == {0: "error", 1: "error"}
    assert values(ready, ALL) == [EXPECTED] * 2


def test_groups_survive_a_cell_that_fails_alike_on_all_ranks(ready):
    values(ready, "solo = [dist.new_group([each]) for each in range(2)][rank]\n1")
    finish(ready, "hvd.allreduce(ones); nonsense")
    later = finish(ready, "dist.all_reduce(own := ones.clone(), group=solo); own.tolist()")
    assert later.results == {0: "[1.0, 1.0]", 1: "[1.0, 1.0]"}
    assert log(later, 0, "stderr") == ""


def test_process_groups_lost_in_a_release_are_reported(ready):
    values(ready, "solo = [dist.new_group([each]) for each in range(2)][rank]\n1")
    finish(ready, "if rank == 1: raise ValueError('mine')\ndist.barrier()")
    later = finish(ready, "1")
    assert "groups made with dist.new_group are gone" in log(later, 1, "stderr")
    assert values(ready, ALL) == [EXPECTED] * 2


def test_process_sets_survive_a_release(ready):
    values(ready, "alone = [hvd.add_process_set([each]) for each in range(2)][rank]\n1")
    finish(ready, "if rank == 1: raise ValueError('mine')\nhvd.barrier()")
    source = "hvd.allreduce(ones, op=hvd.Sum, process_set=alone).tolist()"
    assert values(ready, source) == [[1, 1]] * 2
    assert values(ready, source, ranks=[1]) == [[1, 1]]
    assert values(ready, ALL) == [EXPECTED] * 2


def test_an_interrupt_ends_ranks_that_wait_for_each_other(ready):
    run = ready.run("dist.barrier() if rank == 0 else hvd.barrier()")
    deadline = time.monotonic() + 60
    while run.info.hang is None:  # both wait
        assert not run.wait(0.05) and time.monotonic() < deadline
    run.interrupt()
    assert run.wait(60)
    assert states(run) == {0: "interrupted", 1: "interrupted"}
    assert values(ready, ALL) == [EXPECTED] * 2


def test_manually_released_ranks_can_communicate_again_in_the_same_cell(ready):
    """No rank has failed: elastic training continues in this way."""
    run = ready.run("""
from horovod.common.exceptions import HorovodInternalError
try:
    hvd.allreduce(ones, name=f"of rank {rank}")
except HorovodInternalError:
    hvd.shutdown()
    hvd.init()
hvd.allreduce(ones, op=hvd.Sum).tolist()
""")
    deadline = time.monotonic() + 60
    while run.info.hang is None:  # both wait
        assert not run.wait(0.05) and time.monotonic() < deadline
    ready.release()
    assert run.wait(60)
    assert run.results == {0: "[2.0, 2.0]", 1: "[2.0, 2.0]"}
    assert values(ready, ALL) == [EXPECTED] * 2


# The supervisor checks the other ranks before this error is reported.
SLOW_ERROR = """
import time
class Slow(RuntimeError):
    def __str__(self):
        time.sleep(1)
        return super().__str__()
try:
    dist.all_reduce(ones.clone()) if rank == 0 else time.sleep(600)
except RuntimeError as error:
    raise Slow(*error.args) from None
"""


def test_a_manually_released_rank_does_not_count_as_failed(ready):
    run = ready.run(SLOW_ERROR)
    stuck(run)
    ready.release()
    deadline = time.monotonic() + 60
    while run.running != [1]:
        assert not run.wait(0.05) and time.monotonic() < deadline
    run.interrupt()
    assert run.wait(60)
    assert states(run) == {0: "released", 1: "interrupted"} and run.state == "interrupted"
    assert values(ready, ALL) == [EXPECTED] * 2


MEET_AGAIN = """
from horovod.common.exceptions import HorovodInternalError
try:
    hvd.allreduce(ones, name=f"of rank {rank}")
except HorovodInternalError:
    hvd.shutdown()
    hvd.init()
hvd.allreduce(ones)
"""


def stuck(run: Run) -> None:
    """Wait until the run is reported as stuck."""
    deadline = time.monotonic() + 60
    while run.info.hang is None:
        assert not run.wait(0.05) and time.monotonic() < deadline


@pytest.mark.parametrize("then", ["fails", "is released", "is interrupted"])
def test_ranks_can_be_released_a_second_time_in_the_same_cell(ready, then: str):
    ends = "if rank == 0: raise ValueError('genuine')\n" if then == "fails" else ""
    run = ready.run(f"{MEET_AGAIN}\n{ends}hvd.allreduce(ones, name=f'later, of rank {{rank}}')")
    stuck(run)
    ready.release()
    if then != "fails":
        deadline = time.monotonic() + 60
        while run.info.hang is not None:  # they have met
            assert not run.wait(0.05) and time.monotonic() < deadline
        stuck(run)
        _ = ready.release() if then == "is released" else run.interrupt()
    assert run.wait(60)
    if then == "fails":
        assert states(run) == {0: "error", 1: "released"}
        assert run.info.failure.evalue == "genuine"
    else:
        assert set(states(run).values()) <= {"released", "interrupted"}
    assert values(ready, ALL) == [EXPECTED] * 2


def test_horovod_works_again_after_a_rank_was_released_from_join(home):
    cluster = Cluster.local(ranks=2)
    try:
        values(cluster, "import torch, horovod.torch as hvd; hvd.init(); ones = torch.ones(2)\n1")
        source = "import time; time.sleep(0.3 * rank)\nif rank: raise ValueError()\nhvd.join()"
        assert states(finish(cluster, source)) == {0: "released", 1: "error"}
        again = finish(cluster, "hvd.init(); hvd.allreduce(ones, op=hvd.Sum).tolist()")
        assert again.results == {0: "[2.0, 2.0]", 1: "[2.0, 2.0]"}
    finally:
        cluster.stop()
