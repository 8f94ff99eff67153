"""In a cell on some ranks, a collective of all ranks is refused in one line and never hangs."""

from pathlib import Path
from textwrap import dedent

import pytest

from cells import failure, finish, values
from rankroom.cluster.local import Cluster
from rankroom.rank.world import SubsetError, World

pytestmark = pytest.mark.cluster

SETUP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import horovod.torch as hvd
import tensorflow as tf
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_keras

hvd.init(); hvd_tf.init(); dist.init_process_group("gloo")
ones = torch.ones(2)
net = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters())
ddp = DDP(torch.nn.Linear(2, 1))
alone = [hvd.add_process_set([each]) for each in range(2)][rank]
alone_tf = [hvd_tf.add_process_set([each]) for each in range(2)][rank]
own_group = [dist.new_group([each]) for each in range(2)][rank]
keras_model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
keras_model.compile(optimizer=hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)),
                    loss="mse")
fit = lambda: keras_model.fit(tf.ones((4, 2)), tf.ones((4, 1)), verbose=0)

@tf.function
def inner(x):
    return hvd_tf.allreduce(x, op=hvd_tf.Sum)

@tf.function
def traced(x):
    if tf.reduce_sum(x) > 0:
        return inner(x)
    return x

@tf.function
def traced_alone(x):
    return hvd_tf.allreduce(x, op=hvd_tf.Sum, process_set=alone_tf)

@tf.function
def traced_local(x):
    return x + tf.cast(hvd_tf.rank(), tf.float32)

def outcome(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went through"

fit()
[traced(tf.ones(2)).numpy().tolist(), traced_alone(tf.ones(2)).numpy().tolist(),
 traced_local(tf.ones(2)).numpy().tolist()]
"""

REFUSED = """
    hvd.allreduce(ones)
    hvd.allreduce_(ones)
    hvd.allreduce_async(ones)
    hvd.allreduce(ones, name='mine')
    hvd.grouped_allreduce([ones, ones])
    hvd.grouped_allreduce_async([ones])
    hvd.allgather(ones)
    hvd.grouped_allgather([ones])
    hvd.broadcast(ones, 0)
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(torch.optim.Adam(net.parameters()), 0)
    hvd.broadcast_object(1, 0)
    hvd.allgather_object(1)
    hvd.alltoall(ones)
    hvd.reducescatter(ones)
    hvd.sparse_allreduce_async(ones.to_sparse(), 'sparse', hvd.Sum)
    hvd.barrier()
    hvd.join()
    net(ones).sum().backward()
    optimizer.step()
    hvd.add_process_set([0, 1])
    hvd_tf.allreduce(tf.ones(2))
    hvd_tf.allgather(tf.ones(2))
    hvd_tf.broadcast(tf.ones(2), 0)
    hvd_tf.broadcast_variables(keras_model.variables, 0)
    hvd_tf.broadcast_object(1, 0)
    hvd_tf.alltoall(tf.ones(2))
    hvd_tf.join()
    traced(tf.ones(2))
    traced.get_concrete_function(tf.TensorSpec([2]))(tf.ones(2))
    tf.function(lambda: hvd_tf.allreduce(tf.ones(2)))()
    fit()
    dist.all_reduce(ones)
    dist.all_reduce(ones, async_op=True)
    dist.all_reduce(ones, group=dist.group.WORLD)
    dist.all_gather([ones, ones], ones)
    dist.all_gather_into_tensor(torch.ones(4), ones)
    dist.all_gather_object([None, None], 1)
    dist.gather(ones, None, dst=0)
    dist.reduce(ones, 0)
    dist.reduce_scatter_tensor(ones, torch.ones(4))
    dist.scatter(ones, src=0)
    dist.broadcast(ones, 0)
    dist.broadcast_object_list([None], 0)
    dist.all_to_all_single(ones, ones)
    dist.send(ones, 0)
    dist.recv(ones, 0)
    dist.recv(ones)
    dist.isend(ones, dst=0)
    dist.barrier()
    dist.monitored_barrier()
    dist.new_group([1])
    __import__('torch.distributed._functional_collectives', fromlist=['']).all_reduce(
        ones, 'sum', dist.group.WORLD)
    ddp(ones)
    DDP(torch.nn.Linear(1, 1))
"""
CALLS = [" ".join(line.split()) for line in REFUSED.replace("(\n        ", "(").splitlines()[1:]]

ALLOWED = [
    "hvd.init()",
    "hvd_tf.init()",
    "dist.init_process_group('gloo')",
    "[hvd.rank(), hvd.size(), dist.get_rank(), dist.get_world_size()]",
    "hvd.allreduce(ones, process_set=alone)",
    "hvd.allgather(ones, process_set=alone)",
    "hvd.grouped_allreduce([ones], process_set=alone)",
    "hvd.reducescatter(ones, op=hvd.Sum, process_set=alone)",
    "hvd.grouped_reducescatter([ones], op=hvd.Sum, process_set=alone)",
    "hvd.barrier(process_set=alone)",
    "hvd_tf.allreduce(tf.ones(2), process_set=alone_tf)",
    "traced_alone(tf.ones(2))",
    "traced_local(tf.ones(2))",
    "keras_model(tf.ones((1, 2)))",
    "dist.all_reduce(ones.clone(), group=own_group)",
    "dist.all_gather_object([None], 1, group=own_group)",
    "dist.barrier(group=own_group)",
    "ddp.module(ones)",
    "torch.no_grad()(lambda: ddp(ones))()",
]


@pytest.fixture(scope="module")
def outcomes(frameworks):
    """The outcome of each call, in one cell on rank 1."""
    assert values(frameworks, SETUP) == [
        [[2.0, 2.0], [1.0, 1.0], [1.0 + rank, 1.0 + rank]] for rank in range(2)
    ]
    calls = ", ".join(f"outcome(lambda: {call})" for call in [*CALLS, *ALLOWED])
    (found,) = values(frameworks, f"[{calls}]", ranks=[1])
    return dict(zip([*CALLS, *ALLOWED], found, strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_a_collective_of_all_ranks_is_refused(outcomes, call):
    found = outcomes[call]
    assert found.startswith("SubsetError: ")
    assert "would wait forever for rank 0: this cell runs on rank 1 only" in found
    assert "\n" not in found


@pytest.mark.parametrize("call", ALLOWED)
def test_what_needs_no_other_rank_is_allowed(outcomes, call):
    assert outcomes[call] == "went through"


def test_everything_works_afterwards_on_all_ranks(outcomes, frameworks):
    source = """
    fit()
    optimizer.zero_grad(); net(ones).sum().backward(); optimizer.step()
    ddp(ones).sum().backward()
    dist.all_reduce(total := ones.clone())
    [hvd.allreduce(ones, op=hvd.Sum).tolist(), traced(tf.ones(2)).numpy().tolist(), total.tolist()]
    """
    assert values(frameworks, source) == [[[2, 2], [2, 2], [2, 2]]] * 2


TRAIN = {
    "fit": """
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    model.compile(
        optimizer=hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(tf.ones((8, 2)) * (rank + 1), tf.ones((8, 1)), verbose=0, callbacks=[callback])
    """,
    "a tape": """
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    model(tf.ones((1, 2)))
    hvd_tf.broadcast_variables(model.variables, root_rank=0)
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        tape = hvd_tf.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    step(tf.ones((4, 2)) * (rank + 1))
    """,
}


@pytest.mark.parametrize("how", TRAIN)
def test_layers_created_on_one_rank_do_not_prevent_training_on_all(outcomes, frameworks, how):
    """Keras numbers the layers of a process, and Horovod names its operations after them."""
    made = """
    own = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    own.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    own.fit(tf.ones((4, 2)), tf.ones((4, 2)), verbose=0)
    """
    assert finish(frameworks, made, ranks=[0]).state == "done"
    weights = "[each.tolist() for each in model.get_weights()]"
    one, other = values(frameworks, f"{dedent(TRAIN[how])}\n{weights}", 60)
    assert one == other


def test_a_thread_of_an_earlier_cell_may_use_collectives_in_a_subset_cell(outcomes, frameworks):
    """For example, a thread that saves a checkpoint."""
    begun = """
    import threading, time
    sums = []
    def save():
        time.sleep(0.7)
        total = torch.ones(1)
        dist.all_reduce(total)
        sums.append(total.item())
    saving = threading.Thread(target=save)
    saving.start()
    """
    finish(frameworks, begun)
    meanwhile = """
    saving.join(20)
    refused = outcome(lambda: dist.all_reduce(ones))
    sums, refused
    """
    [(sums, refused)] = values(frameworks, meanwhile, ranks=[0])
    assert sums == [2.0] and refused.startswith("SubsetError: dist.all_reduce() would wait")
    assert values(frameworks, "saving.join(10); sums") == [[2.0], [2.0]]


def test_the_first_init_needs_all_ranks(outcomes, frameworks):
    finish(frameworks, "hvd.shutdown(); dist.destroy_process_group()")
    assert failure(finish(frameworks, "hvd.init()", ranks=[0])).startswith(
        "rank 0: SubsetError: hvd.init() would wait forever for rank 1"
    )
    refused = failure(finish(frameworks, "dist.init_process_group('gloo')", ranks=[0]))
    assert "SubsetError: dist.init_process_group()" in refused
    source = "hvd.init(); dist.init_process_group('gloo'); hvd.allreduce(ones, op=hvd.Sum).tolist()"
    assert values(frameworks, source) == [[2, 2], [2, 2]]


def test_the_refusal_names_who_is_missing():
    world = World(rank=1, size=4, present=(1, 3))
    error = world.refuse("hvd.join()", "Do something else.")
    assert isinstance(error, SubsetError)
    assert str(error) == (
        "hvd.join() would wait forever for ranks 0, 2: this cell runs on ranks 1, 3 only. "
        "Do something else."
    )


MESSAGES = """
    dist.send(ones, other) if rank == 0 else dist.recv(ones, other)
    dist.isend(ones, other, group=dist.group.WORLD).wait() if rank else dist.recv(ones, src=other)
    dist.send(ones, group_dst=other) if rank == 0 else dist.recv(ones, group_src=other)
    dist.send(ones, group=pair, group_dst=other) if rank else dist.recv(ones, other, group=pair)
    dist.send_object_list([1], dst=other) if rank == 0 else dist.recv_object_list([None], other)
    [work.wait() for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, ones, other), dist.P2POp(dist.irecv, torch.ones(2), other)])]
    DDP(torch.nn.Linear(1, 1), process_group=pair)
    DDP(torch.nn.Linear(1, 1), None, None, 0, True, True, pair)
    DDP(torch.nn.Linear(1, 1), device_mesh=DeviceMesh.from_group(pair, "cpu"))
"""
REFUSED_MESSAGES = """
    dist.send(ones, 2)
    dist.isend(ones, 2, group=dist.group.WORLD)
    dist.recv(ones, group_src=2)
    dist.recv(ones)
    dist.send_object_list([1], dst=2)
    dist.batch_isend_irecv([dist.P2POp(dist.isend, ones, 2)])
    DDP(torch.nn.Linear(1, 1), None, None, 0, True, True, dist.group.WORLD)
"""


def test_messages_between_the_ranks_of_a_cell_go_through(home):
    cluster = Cluster.local(ranks=3, preload="torch")
    try:
        finish(cluster, SETUP.partition("import horovod")[0] + dedent("""
            from torch.distributed.device_mesh import DeviceMesh
            dist.init_process_group("gloo")
            ones, other, pair = torch.ones(2), 1 - rank, dist.new_group([0, 1])
        """))  # fmt: skip
        run = finish(cluster, dedent(MESSAGES), ranks=[0, 1])
        assert run.state == "done", failure(run)
        for call in filter(None, map(str.strip, REFUSED_MESSAGES.splitlines())):
            refused = finish(cluster, call, ranks=[0, 1])
            assert "SubsetError: " in failure(refused) and "rank 2" in failure(refused), call
    finally:
        cluster.stop()


OWN_GROUP = """
dist.init_process_group("gloo", init_method="file://{file}", rank=rank, world_size=2)
dist.all_reduce(ones)
pair = dist.new_group([0, 1])
dist.all_reduce(ones, group=pair)
[ones.tolist(), dist.get_world_size()]
"""
LOCAL_GROUP = """
pair = dist.new_group([0, 1], use_local_synchronization=True)
dist.all_reduce(ones, group=pair)
ones.tolist()
"""


def test_some_ranks_can_make_groups_of_their_own(home: Path, tmp_path: Path):
    cluster = Cluster.local(ranks=3, preload="torch")
    try:
        finish(cluster, "import torch, torch.distributed as dist\nones = torch.ones(1)")
        own = OWN_GROUP.format(file=tmp_path / "store")
        assert values(cluster, own, ranks=[0, 1]) == [[[4.0], 2]] * 2
        finish(cluster, "dist.destroy_process_group()", ranks=[0, 1])
        finish(cluster, "dist.init_process_group('gloo')\nones = torch.ones(1)")
        assert values(cluster, LOCAL_GROUP, ranks=[0, 1]) == [[2.0]] * 2
        refused = finish(cluster, LOCAL_GROUP, ranks=[0])
        assert "SubsetError: dist.new_group()" in failure(refused)
    finally:
        cluster.stop()


OWN_DEVICES = """
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
model.fit(tf.ones((8, 2)), tf.ones((8, 1)), batch_size=4, verbose=0)
strategy.num_replicas_in_sync
"""


def test_a_strategy_for_the_devices_of_one_rank_trains_on_that_rank(home: Path):
    cluster = Cluster.local(ranks=2)
    try:
        assert values(cluster, OWN_DEVICES, ranks=[0]) == [2]
    finally:
        cluster.stop()
