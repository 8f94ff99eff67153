"""Model parallelism."""

import re

from lesson_runner import Played

WRONG = {
    "model.1": [
        (
            "def split_sum(weight, x):\n    total = weight * x\n    dist.all_reduce(total)\n    return total",
            "neighbours",
        ),
        (
            "def split_sum(weight, x):\n    total = weight * x\n    dist.all_reduce(total)\n"
            "    return total if rank == size - 1 else None",
            "neighbours",
        ),
        (
            "def split_sum(weight, x):\n    total = weight * x\n    if rank > 0:\n"
            "        before = torch.zeros(())\n        dist.recv(before, src=rank - 1)\n"
            "        total = total + before\n    if rank < size - 1:\n"
            "        dist.send(total, dst=rank + 1)\n    return total",
            "passes its sum on",
        ),
        (
            "from torch.distributed import all_reduce\n\n\ndef split_sum(weight, x):\n"
            "    total = weight * x\n    all_reduce(total)\n"
            "    return total if rank == size - 1 else None",
            "neighbours",
        ),
    ],
    "model.2": [("def bubble(stages, micro):\n    return (stages - 1) / micro", "slots")],
    "model.3": [
        (
            "def column_linear(x, part):\n    own = x @ part\n    every = [torch.empty_like(own) for _ in range(size)]\n"
            "    dist.all_gather(every, own)\n    return sum(every)",
            "shape",
        )
    ],
    "model.4": [
        (
            "def row_linear(own_x, part):\n    total = own_x @ part\n    dist.all_reduce(total)\n    return total / size",
            "is not x @ weight",
        )
    ],
}


def claims(played: Played) -> None:
    one, eight = map(float, re.findall(r"([\d.]+) s", played.text("gain")))
    assert one > 0.31 and eight < one, played.text("gain")
    assert "16 micro-batches on 2, 4, 8 stages:    6%,   16%,   30% idle" in played.text("bubbles")
    assert "True" in played.text("pair") and "False" not in played.text("pair")
    assert "part of the sum" in played.verdicts["model.4"][0][1]
    assert played.text("dtensor").count("'the same gradient': True") == 1
    assert "[6, 8]" in played.text("dtensor")
    assert "True" in played.text("schedule") and "False" not in played.text("schedule")
    assert re.search(r"'lower': '(cpu|cuda:0)', 'upper': '(cpu|cuda:1)'", played.text("devices"))
    assert "'the same output': True, 'the same gradient': True" in played.text("spatial")
    assert "False" not in played.text("spatial")
    kept, less = re.search(r"([\d.]+) MB kept, ([\d.]+) MB", played.text("activations")).groups()
    assert float(less) < float(kept) / 2
