"""A training loop as a tutorial has it: the same text runs as a cell and under horovodrun."""

import json
import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits

STEPS = 2500
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


train(WARM_UP)
hvd.allreduce(torch.zeros(1))
begun = time.perf_counter()
train(STEPS)
hvd.allreduce(torch.zeros(1))
seconds = time.perf_counter() - begun

accuracy = (model(images).argmax(1) == labels).float().mean()
accuracy = hvd.allreduce(accuracy).item()
weights = sum(p.double().sum().item() for p in model.parameters())
alike = len({round(w, 9) for w in hvd.allgather(torch.tensor([weights])).tolist()}) == 1
report = {
    "size": hvd.size(),
    "steps": STEPS,
    "seconds": seconds,
    "threads": torch.get_num_threads(),
}
report |= {"accuracy": accuracy, "alike": alike}
if hvd.rank() == 0:
    print("TRAINED", json.dumps(report))
