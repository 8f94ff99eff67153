import time, torch
import torch.distributed as dist

dist.init_process_group()
for step in range(3):
    if rank != 2:
        dist.all_reduce(torch.ones(3))
    else:
        time.sleep(600)
