"""Tutorial-style code of every framework runs unmodified on the same two ranks."""

import ast
import os
from textwrap import dedent

import pytest

from cells import failure, finish, log, values
from checkout import CACHE, TUTORIALS
from rankroom.cluster.local import Cluster
from rankroom.rank.environment import free_ports

pytestmark = pytest.mark.cluster


def tutorial(cluster, name, seconds=120):
    """Run a tutorial; return the value that each rank shows at its end, and the run."""
    run = finish(cluster, (TUTORIALS / f"{name}.py").read_text(), seconds)
    assert run.state == "done", failure(run)
    return [ast.literal_eval(run.results[rank]) for rank in (0, 1)], run


def test_horovod_torch_trains(frameworks):
    ranks, run = tutorial(frameworks, "horovod_torch")
    assert ranks[0]["accuracy"] > 0.7
    assert ranks[0] == ranks[1]
    assert "epoch 3: accuracy" in log(run, 0)
    assert "accuracy" not in log(run, 1)


def test_horovod_torch_trains_again_when_the_cell_runs_again(frameworks):
    assert tutorial(frameworks, "horovod_torch")[0][0]["accuracy"] > 0.7


def test_an_optimizer_of_horovod_is_made_again_for_the_same_model(frameworks):
    """A cell runs again, perhaps with another learning rate; its model is from an earlier cell."""
    begun = """
        import torch, horovod.torch as hvd
        hvd.init()
        net = torch.nn.Linear(2, 1, bias=False)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        def step():
            optimizer.zero_grad()
            (net(torch.tensor([[1.0, 2.0]])).sum() * (rank + 1)).backward()
            optimizer.step()
            return net.weight.grad.tolist(), net.weight.tolist()
    """
    made = """
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            named_parameters=net.named_parameters())
    """
    again = """
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    """
    finish(frameworks, begun)
    for cell in (made, made, again, again):
        kept = values(frameworks, dedent(cell) + "\nlen(optimizer.state)")
        assert kept == ([0, 0] if cell is made else [1, 1])  # momentum buffers
        found = values(frameworks, "step()")
        assert found[0] == found[1] and found[0][0] == [[1.5, 3.0]]
    # The same holds after a failure between backward() and step().
    finish(frameworks, "net(torch.ones(1, 2)).sum().backward()\nif rank == 1:\n    1 / 0")
    values(frameworks, dedent(made) + "\nTrue")
    found = values(frameworks, "step()")
    assert found[0] == found[1] and found[0][0] == [[1.5, 3.0]]


def test_an_optimizer_of_horovod_is_made_again_with_other_names(frameworks):
    """A cell was edited: parameters get names, or only the head of the model is trained."""
    begun = """
        import torch, horovod.torch as hvd
        hvd.init()
        net = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        def made(part, **options):
            return hvd.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.0), **options)
        def steps():
            found = []
            for _ in range(3):
                optimizer.zero_grad()
                (net[1](net[0](torch.ones(1, 1)) * 0 + 1).sum() * (rank + 1)).backward()
                optimizer.step()
                found.append(net[1].weight.grad.item())
            return found
    """
    finish(frameworks, begun)
    for cell in (
        "made(net)",
        "made(net, named_parameters=net.named_parameters())",
        "made(net[1], named_parameters=net[1].named_parameters())",
    ):
        assert values(frameworks, f"optimizer = {cell}\nsteps()") == [[1.5] * 3] * 2


def test_broadcasting_optimizer_state_does_not_change_parameters(frameworks):
    """A new optimizer takes a step to create its state; weight decay would change parameters."""
    source = """
        import torch, horovod.torch as hvd
        hvd.init()
        net = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
        if rank == 0:
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        torch.nn.init.ones_(net.weight)
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        [net.weight.item(), [int(each["step"]) for each in optimizer.state.values()]]
    """
    assert values(frameworks, source) == [[1.0, [1]]] * 2


def test_calls_without_names_match_after_an_uneven_join(frameworks):
    source = """
        import torch, horovod.torch as hvd
        hvd.init()
        for _ in range(3 - 2 * rank):
            hvd.allreduce(torch.ones(1))
        hvd.join()
        [hvd.allreduce(torch.ones(1) * each * (rank + 1)).item() for each in range(3)]
    """
    assert values(frameworks, source) == [[0.0, 1.5, 3.0]] * 2
    assert values(frameworks, "hvd.allreduce(torch.ones(1) * rank).item()") == [0.5] * 2


ANOTHER_BACKEND = """
import torch, torch.distributed as dist
def alike(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)
if not hasattr(dist.Backend, "ALIKE"):
    dist.Backend.register_backend("alike", alike, devices=["cpu"])
used = []
for backend in ("gloo", None, "alike", "cpu:alike", "gloo"):
    dist.init_process_group(backend)
    dist.all_reduce(total := torch.ones(1))
    used.append((dist.get_backend(), total.item()))
try:
    dist.init_process_group("mpi")
except RuntimeError as error:
    used.append(str(error))
dist.all_reduce(total := torch.ones(1))
dist.destroy_process_group()
[*used, total.item()]
"""


def test_a_process_group_has_the_backend_that_is_asked_for(frameworks):
    run = finish(frameworks, ANOTHER_BACKEND)
    assert run.state == "done", failure(run)
    *used, refused, total = ast.literal_eval(run.results[1])
    assert used == [(name, 2.0) for name in ("gloo", "gloo", "alike", "alike", "gloo")]
    assert refused.startswith("this PyTorch has no backend 'mpi'") and total == 2.0
    said = log(run, 1, "stderr")
    assert said.count("is initialized again, with") == 2
    assert "with alike instead of gloo:" in said


def test_horovod_torch_collectives(frameworks):
    ranks = values(
        frameworks,
        """
        import torch
        import horovod.torch as hvd
        hvd.init()
        mine = torch.full((2,), float(hvd.rank()))
        everybody = hvd.add_process_set([0, 1])
        solo = hvd.add_process_set([hvd.size() - 1])
        alone = hvd.allreduce(mine, op=hvd.Sum, process_set=solo) if solo.included() else mine
        for step in range(3 if hvd.rank() == 0 else 1):
            hvd.allreduce(mine, name=f"uneven {step}")
        last = hvd.join()
        hvd.barrier()
        optimizer = torch.optim.Adam(torch.nn.Linear(2, 1).parameters(), lr=0.1 * (1 + hvd.rank()))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        [
            hvd.allreduce(mine, process_set=everybody).tolist(),
            hvd.allreduce(mine, op=hvd.Max).tolist(),
            [each.tolist() for each in hvd.grouped_allreduce([mine, mine + 1], op=hvd.Sum)],
            hvd.allgather(mine[:1]).tolist(),
            hvd.broadcast(mine, root_rank=1).tolist(),
            hvd.alltoall(torch.arange(2.0) + 10 * hvd.rank()).tolist(),
            hvd.reducescatter(mine + 1, op=hvd.Sum).tolist(),
            hvd.broadcast_object({"from": hvd.rank()}, root_rank=1),
            hvd.allgather_object(hvd.rank()),
            hvd.synchronize(hvd.allreduce_async(mine)).tolist(),
            optimizer.param_groups[0]["lr"],
            last,
            alone.tolist(),
        ]
        """,
    )
    common = [[0.5, 0.5], [1, 1], [[1, 1], [3, 3]], [0, 1], [1, 1]]
    for rank, shown in enumerate(ranks):
        assert shown[:5] == common
        assert shown[5] == [rank, rank + 10]
        assert shown[6:12] == [[3.0], {"from": 1}, [0, 1], [0.5, 0.5], 0.1, 0]
    assert [shown[12] for shown in ranks] == [[0.0, 0.0], [1.0, 1.0]]


def test_broadcast_functions_accept_keyword_arguments(frameworks):
    source = """
        import torch, horovod.torch as hvd, horovod.tensorflow as hvd_tf
        hvd.init(); hvd_tf.init()
        net, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        hvd.broadcast_parameters(params=net.state_dict(), root_rank=1)
        hvd.broadcast_parameters(root_rank=0, params=list(other.named_parameters()))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5 + rank, momentum=0.9)
        hvd.broadcast_optimizer_state(optimizer=optimizer, root_rank=0)
        [net.weight.item(), other.weight.item(), optimizer.param_groups[0]["lr"],
         hvd.broadcast_object(obj=rank, root_rank=1), hvd.broadcast_object(rank, name="x"),
         hvd_tf.broadcast_object(obj=rank, root_rank=1)]
    """
    one, other = values(frameworks, dedent(source))
    assert one == other and one[2:] == [0.5, 1, 0, 1]


OBJECTS = """
    import torch.distributed as dist
    class Names(dict): __getattr__ = dict.get
    class Keys(dict): __getattr__ = dict.__getitem__
    dist.is_initialized() or dist.init_process_group("gloo")
    mine = [Names(rank=rank), Keys(rank=rank)]
    mine.append(mine)  # contains itself
    heard, parts, whole, given = [mine], [None] * size, [None] * size, [None]
    dist.broadcast_object_list(heard, src=1)
    dist.gather_object(mine[1], parts if rank == 0 else None)
    dist.scatter_object_list(given, [mine[0], mine[1]] if rank == 0 else None)
    for _ in range(600):  # from some number of calls on, they are told apart by their sizes
        dist.all_gather_object(whole, mine)
    [heard[0][0]["rank"], given[0]["rank"], [each[1]["rank"] for each in whole], len(parts)]
"""


def test_object_collectives_send_dict_subclasses_and_recursive_lists(frameworks):
    assert values(frameworks, dedent(OBJECTS)) == [[1, 0, [0, 1], 2]] * 2


def test_torch_distributed_collectives(frameworks):
    ranks = values(
        frameworks,
        """
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        me = dist.get_rank()
        mine = torch.full((2,), float(me))
        total = mine.clone()
        dist.all_reduce(total)
        handle = dist.all_reduce(later := mine.clone(), async_op=True)
        handle.wait()
        gathered = [torch.empty(2) for _ in range(2)]
        dist.all_gather(gathered, mine)
        flat = torch.empty(4)
        dist.all_gather_into_tensor(flat, mine)
        dist.broadcast(sent := mine.clone(), src=1)
        dist.reduce(reduced := mine + 1, dst=0)
        dist.scatter(part := torch.empty(1), [torch.ones(1), torch.zeros(1)] if me == 0 else None)
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": me})
        shared = [f"from {me}"]
        dist.broadcast_object_list(shared, src=0)
        if me == 0:
            dist.send(mine + 5, dst=1)
        else:
            dist.recv(total_of_other := torch.empty(2), src=0)
        groups = [dist.new_group([rank]) for rank in range(2)]
        dist.all_reduce(alone := mine.clone(), group=groups[me])
        dist.barrier()
        dist.monitored_barrier()
        [total.tolist(), later.tolist(), [each.tolist() for each in gathered], flat.tolist(),
         sent.tolist(), objects, shared, part.item(), alone.tolist()]
        """,
    )
    for rank, shown in enumerate(ranks):
        assert shown[:5] == [[1, 1], [1, 1], [[0, 0], [1, 1]], [0, 0, 1, 1], [1, 1]]
        assert shown[5:7] == [[{"rank": 0}, {"rank": 1}], ["from 0"]]
        assert shown[7:] == [1.0 - rank, [rank, rank]]


def test_torch_distributed_starts_again_in_a_later_cell(frameworks):
    source = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(x := torch.ones(1))
    x.item()
    """
    assert values(frameworks, source) == [2, 2], "the group of the cell before is kept"
    assert values(frameworks, source) == [2, 2], "the same cell twice"
    assert values(frameworks, "dist.destroy_process_group()\ndist.is_initialized()") == [False] * 2
    assert values(frameworks, source) == [2, 2]
    [port] = free_ports(1)  # tutorials use a fixed port, which may be taken here
    usual = f"""
    import os
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "{port}"
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.all_reduce(x := torch.ones(1))
    [x.item(), os.environ["MASTER_PORT"]]
    """
    assert values(frameworks, usual) == [[2, str(port)]] * 2
    assert values(frameworks, "dist.destroy_process_group()\n1") == [1, 1]


def test_ddp_trains_with_a_sampler_and_loader_processes(frameworks):
    ranks, run = tutorial(frameworks, "torch_ddp")
    assert ranks == [[pytest.approx(3, abs=0.1), pytest.approx(-1, abs=0.1), True]] * 2
    assert "comes from worker" in log(run, 0) + log(run, 1)
    again, _ = tutorial(frameworks, "torch_ddp")
    assert again == ranks


@pytest.mark.thorough
def test_deepspeed_trains(frameworks):
    # The first start compiles an extension. It is cached, but not in the user's own cache: the lock
    # that a killed compilation leaves would block every later one forever.
    cache = CACHE / "torch_extensions"
    for lock in cache.rglob("lock"):
        lock.unlink()
    finish(frameworks, f"import os; os.environ['TORCH_EXTENSIONS_DIR'] = {str(cache)!r}")
    ranks, _ = tutorial(frameworks, "deepspeed_training", seconds=240)
    assert ranks[0]["fell"] and ranks[0]["world"] == 2
    assert ranks[0] == ranks[1]
    broken = "if rank == 1: raise ValueError('mine')\nengine.backward(engine(data).sum())"
    assert failure(finish(frameworks, broken)) == "rank 1: ValueError: mine"
    assert tutorial(frameworks, "deepspeed_training")[0] == ranks, "the cell run again"


def test_horovod_tensorflow_trains(frameworks):
    ranks, run = tutorial(frameworks, "horovod_tensorflow")
    assert ranks[0]["last"] < ranks[0]["first"] / 2
    assert ranks[0]["checksum"] == ranks[1]["checksum"]
    assert "AutoGraph" not in log(run, 0) + log(run, 1)


def test_horovod_keras_trains(frameworks):
    ranks, run = tutorial(frameworks, "horovod_keras")
    assert ranks[0]["accuracy"] > 0.8
    assert ranks[0] == ranks[1]
    assert "Epoch 4/4" in log(run, 0)


def test_horovod_for_torch_and_tensorflow_work_in_one_session(frameworks):
    source = """
    import numpy, torch, tensorflow as tf
    import horovod.torch as hvd_torch
    import horovod.tensorflow as hvd_tf
    {between}
    hvd_torch.init()
    hvd_tf.init()
    ones = torch.ones(2)
    [hvd_torch.allreduce(ones, op=hvd_torch.Sum).tolist(),
     hvd_tf.allreduce(tf.ones(2), op=hvd_tf.Sum).numpy().tolist(),
     hvd_torch.rank(), hvd_tf.rank()]
    """
    expected = [[[2, 2], [2, 2], rank, rank] for rank in range(2)]
    assert values(frameworks, source.format(between="")) == expected
    stop = "hvd_torch.shutdown(); hvd_tf.shutdown()"
    assert values(frameworks, source.format(between=stop)) == expected
    # Shut down on one rank only: the other one notices, and both initialize Horovod again.
    stop = "if rank == 0: hvd_torch.shutdown()"
    assert values(frameworks, source.format(between=stop)) == expected


def test_horovod_for_torch_and_tensorflow_have_separate_process_sets(frameworks):
    source = """
    hvd_torch.init(); hvd_tf.init()
    mine = [hvd_torch.add_process_set([r]) for r in range(2)][rank]
    theirs = [hvd_tf.add_process_set([r]) for r in range(2)][rank]
    [hvd_torch.allreduce(torch.ones(1), op=hvd_torch.Sum, process_set=mine).item(),
     hvd_tf.allreduce(tf.ones(1), op=hvd_tf.Sum, process_set=theirs).numpy().item(),
     mine.size(), theirs.size(), mine.included()]
    """
    for _ in range(2):
        assert values(frameworks, source) == [[1, 1, 1, 1, True]] * 2
    removed = "[hvd_torch.remove_process_set(mine), mine.process_set_id]"
    assert values(frameworks, removed) == [[True, None]] * 2
    at_init = """
    hvd_torch.shutdown()
    own = hvd_torch.ProcessSet([1])
    hvd_torch.init(process_sets=[own])
    hvd_torch.init(process_sets=[hvd_torch.ProcessSet([0])])
    [own.included(), own.size()]
    """
    assert values(frameworks, at_init) == [[False, 1], [True, 1]]
    unlike = finish(frameworks, "hvd_tf.add_process_set([1 - rank] if rank else [rank, 1])")
    assert "given different ranks on different ranks" in failure(unlike)


def test_each_rank_uses_its_share_of_cores_as_thread_count(frameworks):
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    source = """
    import os, torch, tensorflow as tf
    [torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"]),
     int(os.environ["TF_NUM_INTRAOP_THREADS"])]
    """
    assert values(frameworks, source) == [[share] * 3] * 2


def test_users_may_overwrite_the_variables_rank_and_size(frameworks):
    source = "import horovod.torch as hvd; hvd.init()\n[rank, size, local_rank]"
    assert values(frameworks, source) == [[0, 2, 0], [1, 2, 1]]
    assert values(frameworks, "rank = hvd.rank() * 10; size = 'mine'\nrank") == [0, 10]
    assert values(frameworks, "[rank, size]") == [[0, "mine"], [10, "mine"]]
    assert values(frameworks, "rank, size = hvd.rank(), hvd.size()\nrank") == [0, 1]


@pytest.mark.thorough
def test_multi_worker_mirrored_strategy_trains(home):
    # A strategy must be created before TensorFlow does anything else in a process.
    cluster = Cluster.local(ranks=2)
    try:
        ranks, run = tutorial(cluster, "tf_multiworker")
        assert ranks == [[2, 3.0, -1.0]] * 2
        assert "step 40" in log(run, 1)
        refused = finish(cluster, "train_step(iterator)", ranks=[1])
        assert "would wait forever for rank 0" in failure(refused)
        raised = finish(cluster, "if rank == 1: raise ValueError('mine')\ntrain_step(iterator)")
        assert failure(raised) == "rank 1: ValueError: mine"
        later = finish(cluster, "1")
        assert "%cluster restart" in log(later, 0, "stderr")
    finally:
        cluster.stop()
