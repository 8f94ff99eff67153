"""An Adasum optimizer whose cell ended between backward() and step(), in a hook, or in step().

Its hooks replace the weights by the step that they average; nothing is exchanged here.
"""

import json

import horovod.torch as hvd
import horovod.torch.mpi_ops as mpi_ops
import horovod.torch.optimizer as optimizers
import torch

from rankroom.rank.frameworks.horovod import horovod_calls

horovod_calls.track_optimizers(optimizers)
begun = []


def begin(tensor, name=None, op=None):
    begun.append(name)
    mpi_ops._handle_map[len(begun)] = (tensor, tensor)
    return len(begun)


def interrupt(*ignored, **more):
    raise KeyboardInterrupt


optimizers.allreduce_async_ = begin
kind = type("SGD", (torch.optim.SGD,), dict(optimizers._DistributedAdasumOptimizer.__dict__))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
own = torch.optim.SGD(net.parameters(), lr=0.01)
adasum = kind(own.param_groups, list(net.named_parameters()), hvd.Compression.none, 1)
horovod_calls._optimizers.add(adasum)
weights = [each.detach().clone() for each in net.parameters()]


def is_as_before():
    return all(map(torch.equal, weights, net.parameters()))


net(torch.ones(1, 2)).sum().backward()
assert begun and not is_as_before()
horovod_calls.reset_optimizers()
found = {"after backward": is_as_before(), "tensors kept": len(mpi_ops._handle_map)}
optimizers.allreduce_async_ = interrupt
try:
    net(torch.ones(1, 2)).sum().backward()
except KeyboardInterrupt:
    assert not is_as_before()
horovod_calls.reset_optimizers()
found |= {"within a hook": is_as_before(), "parameters": len(adasum.param_groups[0]["params"])}
# In step() itself, after one of two backward passes.
adasum.set_backward_passes_per_step(2)
optimizers.allreduce_async_ = begin
net(torch.ones(1, 2)).sum().backward()
optimizers.allreduce_async_ = interrupt
try:
    adasum.step()
except KeyboardInterrupt:
    assert not is_as_before()
horovod_calls.reset_optimizers()
found |= {"within step": is_as_before(), "of them": len(adasum.param_groups[0]["params"])}
print("RESULT", json.dumps(found))
