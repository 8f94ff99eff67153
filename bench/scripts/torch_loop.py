"""A PyTorch training loop: the same code runs as a cell, under horovodrun, and under torchrun.

KIND is one of horovod, ddp, fsdp, deepspeed; a layer has two tensors.
"""

import torch
from sklearn.datasets import load_digits

KIND = "horovod"
LAYERS = 2
WIDTH = 128

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
layers = [torch.nn.Linear(64, WIDTH if LAYERS > 1 else 10)]
for layer in range(1, LAYERS):
    layers += [torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10 if layer == LAYERS - 1 else WIDTH)]
model = torch.nn.Sequential(*layers)
if KIND == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
else:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if KIND == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif KIND == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if KIND == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
        config = {"train_micro_batch_size_per_gpu": 32}
        model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
batch = 32


def together():
    if KIND == "horovod":
        hvd.allreduce(torch.zeros(1), name="together")
    else:
        dist.barrier()


def train(steps):
    for step in range(steps):
        at = (step * size + rank) * batch % max(1, len(images) - batch)
        chosen = torch.arange(at, at + batch) % len(images)
        if KIND != "deepspeed":
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        if KIND == "deepspeed":
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            optimizer.step()


def threads():
    return torch.get_num_threads()


def is_alike():
    """Return whether all ranks have the same weights; with FSDP, each has its own shard."""
    if KIND == "fsdp":
        return True
    mine = sum(each.detach().double().sum().item() for each in model.parameters())
    if KIND == "horovod":
        return len({round(each, 6) for each in hvd.allgather_object(mine)}) == 1
    found = [None] * size
    dist.all_gather_object(found, mine)
    return len({round(each, 6) for each in found}) == 1


def loss():
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(images), labels).item()
