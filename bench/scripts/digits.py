"""A training loop as a tutorial has it: the same text runs as a cell and under horovodrun."""

import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits

WARM_UP = 200
BATCH = 32

hvd.init()
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)[hvd.rank() :: hvd.size()]
labels = torch.tensor(labels)[hvd.rank() :: hvd.size()]

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)


def train(steps):
    for step in range(steps):
        at = step * BATCH % (len(images) - BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(images[at : at + BATCH]), labels[at : at + BATCH]
        )
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")


def timed(steps):
    """Train for a while: how long it took, and what shows that it was this loop."""
    hvd.allreduce(torch.zeros(1))
    begun = time.perf_counter()
    train(steps)
    hvd.allreduce(torch.zeros(1))
    seconds = time.perf_counter() - begun
    accuracy = (model(images).argmax(1) == labels).float().mean()
    accuracy = hvd.allreduce(accuracy).item()
    weights = sum(p.double().sum().item() for p in model.parameters())
    alike = len({round(w, 9) for w in hvd.allgather(torch.tensor([weights])).tolist()}) == 1
    return {
        "size": hvd.size(),
        "steps": steps,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
        "accuracy": accuracy,
        "alike": alike,
    }


train(WARM_UP)
