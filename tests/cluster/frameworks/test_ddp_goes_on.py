"""After a cell that failed or was interrupted, all DDP models average gradients as before."""

from __future__ import annotations

import pytest

from cells import finish, log, values
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

START = """
import copy, os, signal, threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group("gloo")

def made(**how):
    torch.manual_seed(0)
    return DDP(torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False)), **how)

def own_gradients(state, bucket):
    seen.append(bucket.index())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done

seen = []
models = {"plain": made(), "static": made(static_graph=True), "hook": made()}
models["hook"].register_comm_hook(None, own_gradients)
x = torch.full((1, 2), float(rank + 1))

def gradients():
    found = {}
    for name, model in models.items():
        model.zero_grad()
        model(x).sum().backward()
        found[name] = model.module[0].weight.grad.tolist()[0][0]
    return found

gradients()
gradients()
"""
# Gradients equal the inputs, 1 and 2: they are averaged, except with the user's own hook.
AVERAGED = [{"plain": 1.5, "static": 1.5, "hook": float(rank + 1)} for rank in range(2)]
FAILS = """
if rank == 1:
    raise ValueError("on purpose")
gradients()
"""


@pytest.fixture
def ranks(cluster: Cluster) -> Cluster:
    assert values(cluster, START) == AVERAGED
    return cluster


def test_every_kind_of_ddp_model_averages_gradients_after_a_failed_cell(ranks: Cluster):
    assert finish(ranks, FAILS).state == "failed"
    # With a static graph, the first step averages in a different way than later ones.
    for _ in range(2):
        assert values(ranks, "before = len(seen); gradients()") == AVERAGED
        assert values(ranks, "len(seen) - before") == [1, 1]


def test_an_averaged_copy_of_a_ddp_model_works_after_a_failed_cell(ranks: Cluster):
    """An AveragedModel holds a copy, whose buffers are broadcast before a forward pass."""
    source = """
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    whole = DDP(net)
    average = torch.optim.swa_utils.AveragedModel(whole)
    average(torch.ones(3, 2)).shape
    """
    assert finish(ranks, source).state == "done"
    assert finish(ranks, FAILS).state == "failed"
    assert values(ranks, "tuple(average(torch.ones(3, 2)).shape)") == [(3, 2), (3, 2)]


def test_ddp_models_average_again_after_an_interrupted_backward_pass(ranks: Cluster):
    source = """
    torch.manual_seed(0)
    deep = DDP(torch.nn.Sequential(*[torch.nn.Linear(1200, 1200) for _ in range(8)]))
    data = torch.ones(256, 1200)
    deep(data).sum().backward()
    loss = deep(data).sum()
    dist.barrier()
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    loss.backward()
    """
    assert finish(ranks, source).state == "interrupted"
    again = finish(ranks, "deep.zero_grad(); deep(data).sum().backward(); gradients()")
    assert again.state == "done", log(again, 0, "stderr")
    assert values(ranks, "gradients()") == AVERAGED


def test_a_frozen_copy_of_a_ddp_model_causes_no_error_after_a_failed_cell(ranks: Cluster):
    """Averaged models are usually frozen; PyTorch makes no reducer for a frozen model."""
    source = "frozen = copy.deepcopy(models['plain']).requires_grad_(False)"
    assert finish(ranks, source).state == "done"
    assert finish(ranks, FAILS).state == "failed"
    again = finish(ranks, "frozen(x).shape; gradients()")
    assert again.state == "done" and log(again, 0, "stderr") == "", log(again, 0, "stderr")
    assert values(ranks, "gradients()") == AVERAGED
