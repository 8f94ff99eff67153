"""Horovod with PyTorch, as its tutorials have it: handwritten digits, averaged gradients."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.manual_seed(42 + hvd.rank())
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
train_set = TensorDataset(images[:1500], labels[:1500])
test_set = TensorDataset(images[1500:], labels[1500:])
sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train_set, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(epoch):
    model.train()
    sampler.set_epoch(epoch)
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if batch % 10 == 0:
            print(f"epoch {epoch} [{batch * len(data)}/{len(sampler)}] loss {loss.item():.4f}")


def test():
    model.eval()
    mine = slice(hvd.rank(), None, hvd.size())
    data, target = test_set.tensors[0][mine], test_set.tensors[1][mine]
    with torch.no_grad():
        predicted = model(data).argmax(dim=1)
    return metric_average((predicted == target).float().mean().item(), "avg_accuracy")


for epoch in range(1, 4):
    train(epoch)
    accuracy = test()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")

checksum = sum(parameter.abs().sum().item() for parameter in model.parameters())
{"accuracy": accuracy, "checksum": checksum}
