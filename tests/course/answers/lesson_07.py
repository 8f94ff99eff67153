"""DistributedDataParallel."""

import re

from lesson_runner import Played

WRONG = {
    "ddp.1": [
        (
            "def epoch_of(count, epoch, rank, size):\n    return list(range(count))[rank::size]",
            "same order",
        ),
        (
            "from torch.utils.data import DistributedSampler\n\n\n"
            "def epoch_of(count, epoch, rank, size):\n"
            "    sampler = DistributedSampler(range(count), num_replicas=2, rank=rank)\n"
            "    sampler.set_epoch(epoch)\n    return list(sampler)",
            "Invalid rank",
        ),
        # Disjoint if computed in one process, but each rank shuffles with a seed of its own.
        (
            "from torch.utils.data import DistributedSampler\n\n\n"
            "def epoch_of(count, epoch, rank, size):\n"
            "    seed = 100 * dist.get_rank()\n"
            "    sampler = DistributedSampler(range(count), size, rank, seed=seed)\n"
            "    sampler.set_epoch(epoch)\n    return list(sampler)",
            "the same on all ranks",
        ),
    ],
    "ddp.2": [
        (
            "def accumulate(model, batches):\n    with model.no_sync():\n        for batch in batches:\n            model(batch).sum().backward()",
            "never averaged",
        ),
        # All batches at once, which would not fit into memory.
        (
            "def accumulate(model, batches):\n    model(torch.cat(batches)).sum().backward()",
            "at a time",
        ),
        (
            "def accumulate(model, batches):\n    sum(model(each).sum() for each in batches).backward()",
            "at a time",
        ),
    ],
    "ddp.3": [
        (
            "def unwrapped(model):\n    return {name: 0 * value for name, value in model.module.state_dict().items()}",
            "not the model's weights",
        )
    ],
}

RIGHT = {
    "ddp.2": [
        "from contextlib import nullcontext\n\n\ndef accumulate(model, batches):\n"
        "    for batch in batches:\n"
        "        with nullcontext() if batch is batches[-1] else model.no_sync():\n"
        "            model(batch).sum().backward()",
    ],
}


def claims(played: Played) -> None:
    said = re.findall(r"made': '(\w+)', 'wrapped': '(\w+)'", played.text("wrap"))
    assert len({made for made, _ in said}) == played.ranks
    assert len({wrapped for _, wrapped in said}) == 1
    assert len(set(re.findall(r"'([0-9a-f]{8})'", played.text("train")))) == 1
    assert re.search(r"images per second': [1-9]\d*", played.text("train"))
    assert "all_reduce" in played.text("profile")
    many, few = map(int, re.findall(r"\d+", played.text("compare")))
    assert many == 8 * few
    assert all(float(n) > 0.85 for n in re.findall(r"0\.\d+", played.text("test")))
