"""Two ranks: `horovod.torch` on today's PyTorch, as tutorials use it."""

import json
import os

import horovod.torch as hvd
import torch

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
PORTS = os.environ["MORE_PORTS"].split()
torch.manual_seed(RANK)
X, Y = torch.randn(16, 3), torch.randn(16, 1)


def network():
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers)


def equal_everywhere(tensor):
    rows = hvd.allgather(tensor.detach().reshape(1, -1).float())
    return bool((rows == rows[0]).all())


def loss_of(model):
    return torch.nn.functional.mse_loss(model(X), Y)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1 * (RANK + 1), momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def optimizers_average_and_start_equal():
    for name, make in OPTIMIZERS.items():
        model = network()
        plain = make(model.parameters())
        loss_of(model).backward()
        plain.step()
        plain.zero_grad()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(plain, root_rank=0)
        assert all(equal_everywhere(value) for value in model.state_dict().values()), name
        assert plain.param_groups[0]["lr"] == (0.1 if name == "SGD" else 0.01)

        loss_of(model).backward()
        mine = [p.grad.clone() for p in model.parameters()]
        plain.zero_grad()
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        rate = optimizer.param_groups[0]["lr"]
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            assert all((p.grad is None) == (step % 2 == 0) for p in model.parameters())
            loss_of(model).backward()
            optimizer.synchronize()
            if step == 0:
                for parameter, local in zip(model.parameters(), mine, strict=True):
                    expected = hvd.allgather(local[None]).mean(dim=0)
                    torch.testing.assert_close(parameter.grad, expected)
            with optimizer.skip_synchronize():
                optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == rate / 4
        assert all(equal_everywhere(parameter) for parameter in model.parameters()), name
        state = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)
        optimizer.load_state_dict(state)


def operations_are_right():
    ones = torch.ones(5) * (RANK + 1)
    assert hvd.allreduce(ones).tolist() == [1.5] * 5
    assert hvd.allreduce(ones, op=hvd.Sum, compression=hvd.Compression.fp16).tolist() == [3.0] * 5
    assert hvd.allgather(torch.full((RANK + 1,), RANK)).tolist() == [0, 1, 1]
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in range(SIZE)]
    received, splits = hvd.alltoall(
        torch.arange(2) + 10 * RANK, torch.tensor([1, 1], dtype=torch.int32)
    )
    assert received.tolist() == [RANK, 10 + RANK] and splits.tolist() == [1, 1]
    assert hvd.reducescatter(torch.arange(4.0), op=hvd.Sum).tolist() == [4.0 * RANK, 4.0 * RANK + 2]
    handles = [hvd.allreduce_async(torch.ones(3) * i, name=f"h{i}") for i in range(20)]
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == list(map(float, range(20)))
    assert hvd.broadcast(torch.tensor([RANK + 5]), root_rank=1).item() == 6
    for dtype in (torch.float16, torch.float64, torch.int32, torch.int64):
        total = hvd.allreduce(torch.ones(2, dtype=dtype), op=hvd.Sum)
        assert total.dtype == dtype and total.tolist() == [2, 2]


def it_starts_again_and_again():
    for turn in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = PORTS[turn]
        hvd.init()
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
        assert hvd.allreduce(torch.tensor([float(RANK)])).item() == 0.5


for check in [
    optimizers_average_and_start_equal,
    operations_are_right,
    it_starts_again_and_again,
]:
    print(f"-- {check.__name__}", flush=True)
    check()
    print("RESULT " + json.dumps({check.__name__: True}), flush=True)
