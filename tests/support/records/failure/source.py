import horovod.torch as hvd, torch
hvd.init()
x = torch.ones(3)
if rank == 1:
    raise ValueError(f"bad batch on rank {rank}")
hvd.allreduce(x)
