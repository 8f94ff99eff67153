"""DeepSpeed, as its getting-started page has it: an engine made from a model and a config."""

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    },
)
torch.manual_seed(100 + engine.global_rank)
losses = []
for _ in range(30):
    data = torch.randn(8, 4, device=engine.device)
    loss = torch.nn.functional.mse_loss(engine(data), data.sum(dim=1, keepdim=True))
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())

checksum = sum(parameter.abs().sum().item() for parameter in engine.module.parameters())
{"fell": sum(losses[-5:]) < sum(losses[:5]) / 2, "world": engine.world_size, "checksum": checksum}
