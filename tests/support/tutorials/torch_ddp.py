"""DistributedDataParallel, as its tutorials have it: sampler, loaders with workers, checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")


class Line(Dataset):
    """Points on y = 3x - 1."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 10:
            print("item 10 comes from worker", get_worker_info().id)
        x = torch.tensor([index / 32 - 1.0])
        return x, 3 * x - 1


torch.manual_seed(dist.get_rank())
dataset = Line()
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
model = DDP(nn.Linear(1, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

checkpoint = [os.path.join(tempfile.gettempdir(), f"line-{os.getpid()}.pt")]
dist.broadcast_object_list(checkpoint, src=0)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), checkpoint[0])
dist.barrier()
state = torch.load(checkpoint[0], map_location=device)
dist.barrier()
if dist.get_rank() == 0:
    os.remove(checkpoint[0])
dist.destroy_process_group()
[round(state["weight"].item(), 2), round(state["bias"].item(), 2), loss.item() < 0.1]
