"""Data parallelism with Horovod and PyTorch."""

import re

from lesson_runner import Played

WRONG = {
    "horovod.1": [
        ("def device_of(rank, local_rank, gpus):\n    return f'cuda:{local_rank}'", "without GPUs"),
        # Correct if each node has as many ranks as GPUs.
        (
            "def device_of(rank, local_rank, gpus):\n"
            "    return f'cuda:{rank % gpus}' if gpus else 'cpu'",
            "local rank",
        ),
    ],
    "horovod.2": [
        (
            "def my_part(count, epoch, rank, size):\n"
            "    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))\n"
            "    return order[: count // size * size][rank::size]",
            "same order",
        ),
        (
            "def my_part(count, epoch, rank, size):\n"
            "    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))\n"
            "    return order[rank::size]",
            "waits for them forever",
        ),
        # Rotated by the epoch instead of shuffled.
        (
            "def my_part(count, epoch, rank, size):\n    even = count // size * size\n"
            "    return [(each + epoch) % even for each in range(rank, even, size)]",
            "original order",
        ),
        (
            "def my_part(count, epoch, rank, size):\n"
            "    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))\n"
            "    return order[: count // 2 * 2][rank::2]",
            "parts of two ranks",
        ),
        # Disjoint if computed in one process, but each rank shuffles with a seed of its own.
        (
            "def my_part(count, epoch, rank, size):\n"
            "    seed = 100 * hvd.rank() + epoch\n"
            "    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))\n"
            "    return order[: count // size * size][rank::size]",
            "the same on all ranks",
        ),
    ],
    "horovod.3": [
        (
            "def accuracy(right, count):\n"
            "    return hvd.allreduce(torch.tensor(right / count)).item()",
            "images were right",
        )
    ],
    "horovod.4": [
        (
            "def save(state, path):\n    if rank == 0:\n        torch.save(state, path)\n        hvd.barrier()",
            "not there yet|wait for one another",
        ),
        ("def save(state, path):\n    hvd.barrier()", "rank 0 does not write|not there yet"),
        (
            "def save(state, path):\n    if rank == 0:\n        torch.save(state, path)",
            "not there yet",
        ),
        (
            "def save(state, path):\n    if rank == 0:\n        torch.save(path.name, path)\n"
            "    hvd.barrier()",
            "should hold `state`",
        ),
        (
            "def save(state, path):\n    if rank == 0:\n"
            "        torch.save({**state, 'weight': 0 * state['weight']}, path)\n    hvd.barrier()",
            "other values",
        ),
        # A file that exists may be incomplete.
        (
            "import time\n\n\ndef save(state, path):\n    if hvd.rank() == 0:\n"
            "        torch.save(state, path)\n    while not path.exists():\n"
            "        time.sleep(0.01)",
            "not there yet",
        ),
        # Saves on one rank of each node, not on rank 0 alone.
        (
            "def save(state, path):\n    if hvd.local_rank() == 0:\n"
            "        torch.save(state, path)\n    hvd.barrier()",
            "writes the checkpoint as well",
        ),
    ],
}

RIGHT = {
    "horovod.2": [
        "def my_part(count, epoch, rank, size):\n    import random\n    order = list(range(count))\n"
        "    random.Random(epoch).shuffle(order)\n    each = count // size\n"
        "    return order[rank * each:(rank + 1) * each]",
    ],
    "horovod.4": [
        "def save(state, path):\n    if hvd.rank() == 0:\n        fresh = path.with_suffix('.new')\n"
        "        torch.save(state, fresh)\n        fresh.replace(path)\n    hvd.barrier()",
        "def save(state, path):\n    if hvd.rank() == 0:\n        with open(path, 'wb') as file:\n"
        "            torch.save(state, file)\n    hvd.barrier()",
    ],
}


def prints(played: Played, cell: str) -> list[str]:
    """Return the ranks' fingerprints that a cell shows."""
    return re.findall(r"'([0-9a-f]{8})'", played.text(cell))


def claims(played: Played) -> None:
    said = played.text("no-init") + played.shown["no-init"].error
    assert "has not been initialized" in said
    assert f"together {played.ranks}.0" in played.text("init")
    apart, same = map(
        int, re.search(r"each': (\d+), .*where': (\d+)", played.text("shards")).groups()
    )
    assert apart == played.ranks * same
    each, one = map(int, re.search(r"each': (\d+), .*seed': (\d+)", played.text("seeds")).groups())
    assert each > 1.5 * one
    made = re.findall(r"made': '(\w+)', 'after the broadcast': '(\w+)'", played.text("model"))
    assert len({before for before, _ in made}) == played.ranks
    assert len({after for _, after in made}) == 1
    assert len(set(prints(played, "train"))) == 1
    assert re.search(r"images per second': [1-9]\d*", played.text("train"))
    assert len(set(prints(played, "no-broadcast"))) == played.ranks
    assert len(set(prints(played, "no-wrap"))) == played.ranks
    assert all(float(n) > 0.85 for n in re.findall(r"0\.\d+", played.text("test")))
