"""The cells of `bench/gpu_checks.py`; `device`, `rank` and `size` are defined on each rank."""

# Whether frameworks were imported before the rank was forked; run before any other cell.
PRELOADED = """
import sys
all(name in sys.modules for name in ("torch", "horovod.torch"))
"""
SETUP = """
import os, time
import torch, torch.distributed as dist
import horovod.torch as hvd
on_gpu = device != "cpu"
if on_gpu:
    torch.cuda.set_device(device)
def sync():
    if on_gpu:
        torch.cuda.synchronize()
def connect(backend):
    if size == 1 and dist.is_initialized():  # one rank is as a process without Rankroom
        dist.destroy_process_group()
    dist.init_process_group(backend)
0
"""
ABOUT = """
about = [torch.cuda.get_device_name(device) if on_gpu else "cpu", f"PyTorch {torch.__version__}"]
if on_gpu:
    version = ".".join(map(str, torch.cuda.nccl.version()))
    about += [f"CUDA {torch.version.cuda}", f"NCCL {version}"]
", ".join(about)
"""
OWN = """
uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", device)) if on_gpu else "cpu"
device, uuid, int(os.environ["LOCAL_RANK"])
"""
COLLECTIVES = """
hvd.init()
def hvd_sum():
    mine = torch.full((1000,), rank + 1.0, device=device)
    return hvd.allreduce(mine, op=hvd.Sum, name="sum").unique().item()
def dist_sum():
    mine = torch.full((1000,), rank + 1.0, device=device)
    dist.all_reduce(mine)
    return mine.unique().item()
total = size * (size + 1) / 2
connect("gloo")
dist.all_reduce(on_host := torch.ones(3))
connect("{backend}")  # instead of what is up
gathered = hvd.allgather(torch.full((1,), float(rank), device=device), name="gather").tolist()
sent = hvd.broadcast(torch.full((4,), float(rank), device=device), size - 1, name="last")
parts = [torch.zeros(2, device=device) for _ in range(size)]
dist.all_gather(parts, torch.full((2,), float(rank), device=device))
right = {{
    "hvd.allreduce": hvd_sum() == total,
    "hvd.allgather": gathered == [float(each) for each in range(size)],
    "hvd.broadcast": sent.unique().item() == size - 1,
    "dist.all_reduce": dist_sum() == total,
    "dist.all_gather": [part[0].item() for part in parts] == [float(n) for n in range(size)],
}}
{{"right": right, "backend": str(dist.get_backend())}}
"""
ALLREDUCE = """
hvd.init()
connect("{backend}")
block = torch.ones({count}, device=device)
calls = {{
    "hvd.allreduce": lambda: hvd.allreduce_(block, op=hvd.Average, name="block"),
    "dist.all_reduce": lambda: dist.all_reduce(block, op=dist.ReduceOp.MAX),
}}
taken = {{}}
for library, call in calls.items():
    taken[library] = []
    for turn in range(25):
        sync()
        begun = time.perf_counter()
        call()
        sync()
        if turn >= 5:
            taken[library].append(time.perf_counter() - begun)
taken
"""
# The same code runs in a cell and under torchrun.
DDP = """
import time
import torch, torch.distributed as dist
dist.init_process_group("{backend}")
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
    torch.nn.Linear(512, 10),
).to(device)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images = torch.randn(64, 256, device=device)
labels = torch.arange(64, device=device) % 10
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return net[0].weight[0, 0].item()  # all that was begun on the device is over
def timed(steps):
    dist.barrier()
    begun = time.perf_counter()
    train(steps)
    return time.perf_counter() - begun
timed(20)
steps = torch.tensor(max(5, int({seconds} * 20 / timed(20))), device=device)
dist.broadcast(steps, 0)
measured = [steps.item() / timed(steps.item()) for _ in range(5)]
def speeds():
    return measured
"""
TORCHRUN = """
import json, os
import torch
rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
device = f"cuda:{int(os.environ['LOCAL_RANK']) % gpus}" if gpus else "cpu"
if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
if device != "cpu":
    torch.cuda.set_device(device)
"""
_RAISE = """
mine = torch.ones(1000, device=device)
try:
    if rank == size - 1:
        time.sleep(0.3)  # the others are in their collective by then
        raise ValueError("mine")
    {call}
    sync()
finally:
    let_go = time.time()
"""
RAISES = {
    "Horovod": _RAISE.format(call='hvd.allreduce(mine, name="blocked")'),
    "torch.distributed": _RAISE.format(call="dist.all_reduce(mine)"),
}
LOOP = """
turns, product = 0, torch.rand(512, 512, device=device)
while True:
    product = (product @ product).sin()
    if turns % 8 == 0:
        sync()
    turns += 1
    if turns == 16 and rank == size - 1:
        open({sign!r}, "w").close()
"""
WORK = """
begun, product = time.monotonic(), torch.rand(1024, 1024, device=device)
while time.monotonic() - begun < 2.5:
    product = (product @ product).sin()
    sync()
    time.sleep(0.001)
0
"""
LISTENING = """
import psutil
sockets = [each for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
sorted({f"{each.laddr.ip}:{each.laddr.port}" for each in sockets})
"""
METRICS = """
import rankroom
big = torch.rand(4096 if on_gpu else 256, 4096 if on_gpu else 256, device=device)
def work():
    value = big
    for _ in range(20 if on_gpu else 1):
        value = (value @ big) / len(big)
    return value.mean()
work(), sync()
begun = time.perf_counter()
work(), sync()
took = time.perf_counter() - begun
calls = []
for step in range(20):
    loss = work()
    begun = time.perf_counter()
    rankroom.log(loss=loss, step=step)
    calls.append(time.perf_counter() - begun)
sync()
sorted(calls)[len(calls) // 2], took
"""
# The last rank's device is late for a collective, and for the averaging of gradients.
LATE = """
def late():
    if rank == size - 1:
        torch.cuda._sleep(1_000_000_000) if on_gpu else time.sleep(0.5)
connect("BACKEND")
mine = torch.ones(1000, device=device)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
for step in range(4):
    loss = model(torch.ones(8, 4, device=device)).sum()
    if step == 3:
        late()
    loss.backward()
dist.all_reduce(mine)
sync()
late()
dist.all_reduce(mine)
sync()
"""
# Errors that end a rank's work on its device, or make the device unusable for it.
BREAKS = {
    "out of memory": """
if rank == size - 1:
    much = torch.empty(1 << 45, dtype=torch.uint8, device=device)
""",
    "an index out of bounds": """
table = torch.nn.Embedding(10, 4).to(device)
if rank == size - 1:
    table(torch.tensor([10], device=device))
    sync()
""",
}
# Cells in which ranks wait for each other forever, and how the expected explanation begins.
HANGS = {
    "a rank that skips a collective": (
        "mine = torch.ones(1000, device=device)\n"
        "if rank == 0:\n    dist.all_reduce(mine)\n    mine.sum().item()",
        "rank 0 waits in dist.all_reduce",
    ),
    "one of Horovod": (
        "mine = torch.ones(1000, device=device)\n"
        "if rank == 0:\n    hvd.allreduce(mine, name='loss')",
        "rank 0 waits in hvd.allreduce loss",
    ),
    "gradients of a DDP model": (
        "mine = torch.ones(8, 4, device=device)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to(device))\n"
        "if rank == size - 1:\n    time.sleep(60)\n"
        "model(mine).sum().backward()\nsync()",
        "rank 0 waits in dist.all_reduce of DistributedDataParallel",
    ),
    "different collectives": (
        "mine = torch.ones(1000, device=device)\n"
        "if rank == 0:\n    dist.all_reduce(mine)\n"
        "else:\n    dist.broadcast(mine, 0)\n    dist.barrier()\nsync()",
        "rank 0 waits in dist.all_reduce",
    ),
}
TOOLS = {
    "torch.compile": """
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
net.to(device)
fast, given = torch.compile(net), torch.randn(8, 64, device=device)
fast(given).sum().backward()
torch.allclose(fast(given), net(given), atol=1e-2)
""",
    "mixed precision with Horovod": """
hvd.init()
net = torch.nn.Linear(64, 4).to(device)
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=0.001), named_parameters=net.named_parameters()
)
losses = []
for step in range(10):
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = net(torch.ones(8, 64, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
losses[-1] < losses[0] and len(set(hvd.allgather_object(net.weight.sum().item()))) == 1
""",
    "FSDP": """
from torch.distributed.fsdp import fully_shard
connect("BACKEND")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
net.to(device)
for layer in (net[0], net[2], net):
    fully_shard(layer)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = net(torch.ones(8, 64, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
losses[-1] < losses[0]
""",
    "a DataLoader": """
pairs = torch.utils.data.TensorDataset(torch.arange(256.0))
loader = torch.utils.data.DataLoader(pairs, 32, num_workers=2, pin_memory=on_gpu)
total = sum(each.to(device, non_blocking=True).sum().item() for (each,) in loader)
total == 255 * 128
""",
}
_SEEN = """
import os
import tensorflow as tf
everything = [each.name for each in tf.config.list_physical_devices("GPU")]
"""
_FOUND = """
visible = [each.name for each in tf.config.get_visible_devices("GPU")]
everything, [each.removeprefix("/physical_device:") for each in visible], float(total)
"""
STRATEGY = {
    "a strategy": _SEEN
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
def one():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(()))
total = tf.function(lambda: strategy.run(one))().numpy()
"""
    + _FOUND,
    "Horovod": _SEEN
    + """
import horovod.tensorflow as hvd
hvd.init()
if gpus := tf.config.list_physical_devices("GPU"):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
total = hvd.allreduce(tf.ones(()), op=hvd.Sum).numpy()
"""
    + _FOUND,
}
