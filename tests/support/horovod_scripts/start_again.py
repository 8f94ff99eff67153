"""Ranks that start Horovod and shut it down TIMES times, with one rendezvous store."""

import json
import os

import horovod.torch as hvd
import torch

TIMES = int(os.environ["TIMES"])
for number in range(TIMES):
    hvd.init()
    summed = hvd.allreduce(torch.tensor([1.0 + number]), op=hvd.Sum, name="sum")
    assert summed.item() == hvd.size() * (1.0 + number)
    hvd.shutdown()
print("RESULT", json.dumps({"started": TIMES}), flush=True)
