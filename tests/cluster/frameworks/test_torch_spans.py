"""torch.distributed's collectives as spans on two real ranks, and their waits."""

import json
from statistics import median

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
    """Return the times that a rank printed as JSON, in microseconds since the run's start."""
    return {k: t // 1000 - run.info.start for k, t in json.loads(log(run, rank)).items()}


def test_a_collectives_span_has_its_bytes_dtype_shape_and_line(torch_ranks):
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
            assert each.start <= wait.start + 1 and wait.end <= each.end + 1


def test_the_last_rank_to_arrive_is_seen(torch_ranks):
    run = done(
        torch_ranks,
        """
        import json
        dist.barrier()
        told = {}
        for step in range(5):
            if rank == 1:
                time.sleep(0.3)
            ones = torch.ones(10)
            told[f"called {step}"] = time.time_ns()
            dist.all_reduce(ones)
            told[f"back {step}"] = time.time_ns()
        print(json.dumps(told))
        """,
    )
    ranks = [spans(run, rank, "collective")[1:] for rank in (0, 1)]
    for mine, times in zip(ranks, [told(run, rank) for rank in (0, 1)], strict=True):
        for step, each in enumerate(mine):
            assert (
                times[f"called {step}"] <= each.start + 1 and each.end - 1 <= times[f"back {step}"]
            )
        # A span begins with its own call, not when the other rank arrives.
        assert median(each.start - times[f"called {n}"] for n, each in enumerate(mine)) < 20_000
    for zero, one in zip(*ranks, strict=True):
        assert zero.name == one.name
        assert min(zero.end, one.end) >= max(zero.start, one.start)
    assert median(one.start - zero.start for zero, one in zip(*ranks, strict=True)) > 0


def test_collectives_are_numbered_per_group_so_that_ranks_agree(torch_ranks):
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


def test_an_asynchronous_collective_ends_when_its_work_does(torch_ranks, tmp_path):
    run = done(
        torch_ranks,
        f"""
        import json
        from pathlib import Path
        called, over = Path({str(tmp_path / "called")!r}), Path({str(tmp_path / "over")!r})
        dist.barrier()
        if rank == 1:
            while not called.exists():
                time.sleep(0.01)
            time.sleep(0.5)
        told = {{"called": time.time_ns()}}
        work = dist.all_reduce(torch.ones(10), async_op=True)
        told["back"] = time.time_ns()
        if rank == 0:
            called.touch()
        else:
            while not (over.exists() and work.is_completed()):
                time.sleep(0.01)
            # A pause of this process ends one of them: the others are left to see the end.
            for _ in range(10):
                time.sleep(0.1)
        told["wait"] = time.time_ns()
        work.wait()
        told["over"] = time.time_ns()
        over.touch()
        print(json.dumps(told))
        """,
    )
    times = [told(run, rank) for rank in (0, 1)]
    for rank in (0, 1):
        span = spans(run, rank, "collective")[1]
        assert span.name == "all_reduce #1"
        assert times[rank]["called"] <= span.start + 1 <= times[rank]["back"] + 1
        assert times[1]["called"] <= span.end < times[1]["wait"]
    waited = spans(run, 0, "wait")[-1]
    assert waited.name == "dist.all_reduce"
    assert times[0]["wait"] <= waited.start + 1 and waited.end - 1 <= times[0]["over"]
    assert waited.end >= times[1]["called"]


def test_a_send_and_its_receive_have_the_same_name(torch_ranks):
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


@pytest.mark.parametrize("view", ["", ".view(-1)", "[1:].reshape(3)"])
def test_functional_collectives_are_recorded(torch_ranks, view: str):
    """Also if only a view of the result is used, as with tensor parallelism."""
    run = done(
        torch_ranks,
        f"""
        import torch.distributed._functional_collectives as functional
        dist.barrier()
        total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD){view}
        if rank == 1:
            time.sleep(0.05)
        assert (total + 0).tolist() == [2.0] * len(total)
        """,
    )
    for rank in (0, 1):
        assert names(run, rank, "collective") == ["barrier #1", "all_reduce #1"]


def test_collectives_are_not_numbered_beyond_500_in_a_long_loop(torch_ranks):
    run = done(torch_ranks, "for _ in range(700): dist.all_reduce(torch.ones(1))")
    for rank in (0, 1):
        found = names(run, rank, "collective")
        assert len(found) == 700 and len(set(found)) == 501
        assert found[499:501] == ["all_reduce #500", "all_reduce after #500"]


def test_gradient_buckets_of_a_ddp_model_are_recorded(torch_ranks):
    source = """
    torch.manual_seed(3)
    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    plain = torch.nn.Sequential(*layers)
    model = torch.nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=0.5, WHICH)
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(rank))
    for step in range(3):
        if rank == 1:
            time.sleep(0.3)
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
        # Rank 0 waits for rank 1 at the end of its backward pass, or before its second forward
        # pass, where DDP rebuilds its buckets.
        waits = [each for each in spans(run, 0, "wait") if "of Distributed" in each.name]
        assert "dist.all_reduce of DistributedDataParallel" in {each.name for each in waits}
        assert sum(each.end - each.start for each in waits) > 100_000
        if not which.startswith("find"):
            assert "broadcast buckets" in names(run, 0, "collective")


def test_buffer_broadcasts_of_a_ddp_model_are_recorded(torch_ranks):
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


def test_recording_does_not_disturb_compiled_code(torch_ranks):
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


HOOKED = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
torch.manual_seed(3)
layers = [torch.nn.Linear(300, 300) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
"""


def test_gradients_of_a_ddp_model_with_a_comm_hook_are_recorded(torch_ranks):
    source = f"""{HOOKED}
model.register_comm_hook(None, default_hooks.allreduce_hook)
assert model._comm_hooks == [(default_hooks.allreduce_hook, None)]
for step in range(3):
    if rank == 1:
        time.sleep(0.3)
    model.zero_grad()
    model(torch.ones(8, 300)).sum().backward()
"""
    run = done(torch_ranks, source)
    both = []
    for rank in (0, 1):
        found = spans(run, rank, "collective")
        both.append([each for each in found if each.about["op"] == "all_reduce"])
    assert len(both[0]) == len(both[1])
    total = 3 * 4 * 4 * (300 * 300 + 300)
    assert [sum(each.about["bytes"] for each in mine) for mine in both] == [total, total]
    late = [one.start - zero.start for zero, one in zip(*both, strict=True)]
    assert max(late) > 50_000
    waits = [each for each in spans(run, 0, "wait") if "of Distributed" in each.name]
    assert sum(each.end - each.start for each in waits) > 2 * 60_000


def test_collectives_that_a_cell_does_not_wait_for_are_recorded(torch_ranks):
    run = done(torch_ranks, "dist.barrier()\n_ = dist.all_reduce(torch.ones(9), async_op=True)")
    for rank in (0, 1):
        assert names(run, rank, "collective") == ["barrier #1", "all_reduce #1"]
    run = done(torch_ranks, "futures = [dist.all_reduce(torch.ones(9), async_op=True).get_future()"
               " for _ in range(50)]\nfor each in futures:\n    each.wait()")  # fmt: skip
    for rank in (0, 1):
        assert len(names(run, rank, "collective")) == 50


def test_creating_a_ddp_model_records_waits_only_while_it_communicates(torch_ranks):
    run = done(
        torch_ranks,
        """
        class Slow(torch.nn.Linear):
            def named_parameters(self, *args, **kwargs):
                with span("own"):
                    time.sleep(0.2)
                return super().named_parameters(*args, **kwargs)
        model = torch.nn.parallel.DistributedDataParallel(Slow(4, 4))
        """,
    )
    for rank in (0, 1):
        waits = [each for each in spans(run, rank, "wait") if each.name.startswith("Distributed")]
        assert len(waits) == 2
        made = names(run, rank, "collective")
        assert made[:2] == ["all_gather shapes", "broadcast parameters"]
        # Most of what a rank does alone is in no wait, however long the other rank takes.
        own = spans(run, rank, "user")
        inside = [
            each
            for each in own
            if any(wait.start < each.end and each.start < wait.end for wait in waits)
        ]
        assert len(inside) < len(own) / 2, (len(inside), len(own))


def test_a_batch_of_messages_names_its_peers(torch_ranks):
    run = done(
        torch_ranks,
        """
        other = 1 - rank
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.ones(3), other),
            dist.P2POp(dist.irecv, torch.empty(3), other),
        ]):
            work.wait()
        """,
    )
    for rank in (0, 1):
        assert set(names(run, rank, "collective")) == {"send 0→1 #1", "send 1→0 #1"}


def test_a_wait_that_is_broken_off_counts_as_waiting(torch_ranks, tmp_path):
    source = """
    from pathlib import Path
    waits = Path(PATH)
    dist.barrier()
    if rank == 1:
        while not waits.exists():
            time.sleep(0.01)
        time.sleep(1.5)
        raise ValueError("no more")
    waits.touch()
    WAIT
    """
    waits = {
        "dist.all_reduce(torch.ones(2))": "dist.all_reduce",
        "dist.all_reduce(torch.ones(2), async_op=True).wait()": "dist.all_reduce",
        "model(torch.ones(8, 300)).sum().backward()": "of DistributedDataParallel",
    }
    values(torch_ranks, HOOKED + "1")
    for n, (wait, name) in enumerate(waits.items()):
        path = repr(str(tmp_path / str(n)))
        run = finish(torch_ranks, source.replace("PATH", path).replace("WAIT", wait))
        assert failure(run) == "rank 1: ValueError: no more"
        waited = spans(run, 0, "wait")[-1]
        assert waited.name.endswith(name) and waited.end - waited.start > 800_000
        times = run.profile().ranks[0]
        assert times.waiting > 800_000, "it computes, or communicates"
        assert values(torch_ranks, START.replace("dist.init", "dist.is_initialized() or dist.init"))
