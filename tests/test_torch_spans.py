"""torch.distributed's collectives as spans on two real ranks, and what they wait for."""

import json

import pytest

from cells import failure, finish, log, values
from spanned import names, spans

pytestmark = pytest.mark.cluster
START = "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n1"


@pytest.fixture(scope="module")
def torch_ranks(frameworks):
    assert values(frameworks, START) == [1, 1]
    return frameworks


def done(cluster, source):
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    return run


def told(run, rank):
    """What a rank printed as JSON: times in microseconds since the run's start."""
    return {k: t // 1000 - run.info.start for k, t in json.loads(log(run, rank)).items()}


def test_a_collective_is_described(torch_ranks):
    run = done(
        torch_ranks,
        """
        dist.all_reduce(torch.ones(3, 4))
        parts = [torch.empty(2) for _ in range(size)]
        dist.all_gather(parts, torch.ones(2))
        dist.all_reduce(torch.ones(5, dtype=torch.float64))
        dist.barrier()
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        """,
    )
    for rank in (0, 1):
        found = spans(run, rank, "collective")
        assert [each.name for each in found] == [
            "all_reduce #1", "all_gather #1", "all_reduce #2", "barrier #1", "all_gather_object #1",
        ]  # fmt: skip
        first, gather, second, barrier, _ = (each.about for each in found)
        assert first == {
            "name": "all_reduce #1", "op": "all_reduce", "tensor": "#1", "library": "dist",
            "bytes": 48, "dtype": "float32", "shape": [3, 4], "line": 1,
        }  # fmt: skip
        assert (gather["bytes"], gather["shape"], gather["line"]) == (8, [2], 3)
        assert (second["bytes"], second["dtype"]) == (40, "float64")
        assert "bytes" not in barrier
        waits = spans(run, rank, "wait")
        assert [each.name for each in waits][:2] == ["dist.all_reduce", "dist.all_gather"]
        for wait, each in zip(waits, found, strict=True):
            assert abs(wait.start - each.start) < 1000 and abs(wait.end - each.end) < 1000


def test_the_last_rank_to_arrive_is_seen(torch_ranks):
    run = done(
        torch_ranks,
        """
        dist.barrier()
        for step in range(5):
            if rank == 1:
                time.sleep(0.05)
            dist.all_reduce(torch.ones(10))
        """,
    )
    ranks = [spans(run, rank, "collective")[1:] for rank in (0, 1)]
    for zero, one in zip(*ranks, strict=True):
        assert zero.name == one.name
        assert 40_000 < one.start - zero.start < 200_000
        assert zero.end >= one.start


def test_counts_are_equal_though_ranks_use_groups_apart(torch_ranks):
    run = done(
        torch_ranks,
        """
        alone = [dist.new_group([r]) for r in range(size)][rank]
        both = dist.new_group([0, 1])
        for _ in range(1 + 2 * rank):
            dist.all_reduce(torch.ones(1), group=alone)
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), group=both)
        dist.all_reduce(torch.ones(1), group=dist.group.WORLD)
        """,
    )
    found = [[each.about for each in spans(run, rank, "collective")] for rank in (0, 1)]
    for rank, mine in enumerate(found):
        own = [each for each in mine if each.get("ranks") == [rank]]
        assert [each["tensor"] for each in own] == [f"#{n + 1}" for n in range(1 + 2 * rank)]
        common = [each for each in mine if "group" not in each]
        assert [each["tensor"] for each in common] == ["#1", "#2"]
    shared = [[each for each in mine if each.get("ranks") == [0, 1]] for mine in found]
    assert shared[0] == shared[1] and len(shared[0]) == 1
    assert len({each["group"] for mine in found for each in mine if "group" in each}) == 3


def test_an_asynchronous_collective_ends_when_its_work_does(torch_ranks):
    run = done(
        torch_ranks,
        """
        import json
        dist.barrier()
        if rank == 1:
            time.sleep(0.1)
        told = {"called": time.time_ns()}
        work = dist.all_reduce(torch.ones(10), async_op=True)
        told["back"] = time.time_ns()
        if rank == 1:
            time.sleep(0.3)
        told["wait"] = time.time_ns()
        work.wait()
        told["over"] = time.time_ns()
        print(json.dumps(told))
        """,
    )
    times = [told(run, rank) for rank in (0, 1)]
    for rank in (0, 1):
        span = spans(run, rank, "collective")[1]
        assert span.name == "all_reduce #1"
        assert times[rank]["called"] <= span.start + 1 <= times[rank]["back"] + 1
        assert times[1]["called"] <= span.end <= times[1]["back"] + 50_000, "not at wait()"
    waited = spans(run, 0, "wait")[-1]
    assert waited.name == "dist.all_reduce"
    assert abs(waited.start - times[0]["wait"]) < 2000 and abs(waited.end - times[0]["over"]) < 2000
    assert waited.end - waited.start > 50_000


def test_messages_match_their_receipt(torch_ranks):
    run = done(
        torch_ranks,
        """
        if rank == 0:
            dist.send(torch.ones(2), dst=1)
            dist.isend(torch.ones(3), 1).wait()
        else:
            dist.recv(torch.empty(2), src=0)
            dist.irecv(torch.empty(3), 0).wait()
        """,
    )
    both = [[each.about for each in spans(run, rank, "collective")] for rank in (0, 1)]
    for rank in (0, 1):
        assert [each["name"] for each in both[rank]] == ["send 0→1 #1", "send 0→1 #2"]
        assert [each["bytes"] for each in both[rank]] == [8, 12]
        assert both[rank][0]["ranks"] == [0, 1]


def test_functional_collectives_end_where_they_are_used(torch_ranks):
    run = done(
        torch_ranks,
        """
        import torch.distributed._functional_collectives as functional
        dist.barrier()
        total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        if rank == 1:
            time.sleep(0.05)
        assert (total + 0).tolist() == [2.0] * 4
        """,
    )
    for rank in (0, 1):
        assert names(run, rank, "collective") == ["barrier #1", "all_reduce #1"]


def test_numbers_stop_growing_in_a_long_loop(torch_ranks):
    run = done(torch_ranks, "for _ in range(700): dist.all_reduce(torch.ones(1))")
    for rank in (0, 1):
        found = names(run, rank, "collective")
        assert len(found) == 700 and len(set(found)) == 501
        assert found[499:501] == ["all_reduce #500", "all_reduce after #500"]


def test_gradients_of_a_ddp_model(torch_ranks):
    source = """
    torch.manual_seed(3)
    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    plain = torch.nn.Sequential(*layers)
    model = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=0.5, WHICH)
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(rank))
    for step in range(3):
        if rank == 1:
            time.sleep(0.1)
        model.zero_grad()
        model(x).sum().backward()
    sums = [float(each.grad.double().sum()) for each in plain.parameters()]
    dist.all_gather_object(both := [None, None], sums)
    assert both[0] == both[1]
    for each in plain.parameters():
        each.grad = None
    plain(x).sum().backward()
    for each in plain.parameters():
        dist.all_reduce(each.grad)
    mean = [float((each.grad / size).double().sum()) for each in plain.parameters()]
    assert torch.allclose(torch.tensor(sums), torch.tensor(mean), rtol=1e-4)
    import pickle
    pickle.loads(pickle.dumps(model))
    """
    for which in ("", "gradient_as_bucket_view=True", "find_unused_parameters=True"):
        run = done(torch_ranks, source.replace("WHICH", which))
        ranks = [
            [each for each in spans(run, rank, "collective") if each.about["tensor"] == "gradients"]
            for rank in (0, 1)
        ]
        assert len(ranks[0]) == len(ranks[1]) > 3
        sizes = [
            [each.about["bytes"] for each in mine if each.about["dtype"] == "float32"]
            for mine in ranks
        ]
        assert sizes[0] == sizes[1]
        assert sum(sizes[0]) == 3 * 4 * 4 * (300 * 300 + 300)
        late = [one.start - zero.start for zero, one in zip(*ranks, strict=True)]
        assert max(late) > 50_000
        # Rank 0 is blocked at the end of its backward pass, until rank 1 has come; or before its
        # second forward pass, where the ranks agree how to put gradients together.
        waits = [each for each in spans(run, 0, "wait") if "of Distributed" in each.name]
        assert "dist.all_reduce of DistributedDataParallel" in {each.name for each in waits}
        assert sum(each.end - each.start for each in waits) > 3 * 60_000
        if not which.startswith("find"):
            assert "broadcast buckets" in names(run, 0, "collective")


def test_buffers_of_a_ddp_model(torch_ranks):
    run = done(
        torch_ranks,
        """
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        model = torch.nn.parallel.DistributedDataParallel(model)
        for step in range(2):
            model(torch.randn(4, 3)).sum().backward()
        """,
    )
    for rank in (0, 1):
        assert names(run, rank, "collective").count("broadcast buffers") >= 2


def test_compiled_code_is_left_alone(torch_ranks):
    run = done(
        torch_ranks,
        """
        @torch.compile(backend="eager", fullgraph=True)
        def doubled(x):
            y = x * 2
            dist.all_reduce(y)
            return y + 1
        assert doubled(torch.ones(3)).tolist() == [5.0] * 3
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        compiled = torch.compile(model, backend="eager")
        for _ in range(3):
            compiled(torch.ones(2, 4)).sum().backward()
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        @torch.compile(backend="eager")
        def step():
            sgd.step()
        step()
        """,
    )
    for rank in (0, 1):
        assert "all_reduce gradients" in names(run, rank, "collective")
        assert "does not know how to trace the builtin `time" not in log(run, rank, "stderr")
