"""Feeding the ranks."""

import ast
import re

from lesson_runner import Played

WRONG = {
    "feeding.1": [
        ("def seen(images, ranks, each):\n    return 1 - (1 - 1 / images) ** each", "you predict")
    ],
    "feeding.2": [
        (
            "def files_of(sizes, rank, size):\n    return sorted(sizes, key=sizes.get)[rank * 8 : rank * 8 + 8]",
            "fair share",
        ),
        # Each file to the rank with the least so far, but not the largest files first.
        (
            "def files_of(sizes, rank, size):\n    mine, loads = [[] for _ in range(size)], [0] * size\n"
            "    for name in sizes:\n        least = loads.index(min(loads))\n"
            "        mine[least].append(name)\n        loads[least] += sizes[name]\n    return mine[rank]",
            "fair share",
        ),
        (
            "def files_of(sizes, rank, size):\n"
            "    return sorted(sizes, key=sizes.get, reverse=True)[rank::size]",
            "fair share",
        ),
    ],
    "feeding.3": [
        (
            "def common_steps(mine):\n    fewest = torch.tensor(mine)\n"
            "    dist.all_reduce(fewest, op=dist.ReduceOp.MAX)\n    return int(fewest)",
            "should make",
        ),
        (
            "def common_steps(mine):\n    fewest = torch.tensor(mine)\n"
            "    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)\n    return fewest",
            "return an int",
        ),
    ],
}


def claims(played: Played) -> None:
    found = ast.literal_eval(re.search(r"\{'sharded'.*?\}", played.text("draw"), re.S)[0])
    assert found["sharded"] == 1.0
    assert 0.6 < found["own seed"] < 0.66
    assert found["same seed"] < 0.45
    assert "the run was stuck" in played.text("uneven-why") and "all_reduce" in played.text(
        "uneven-why"
    )
    assert "(0.0, 1999.0)" in played.text("scatter") and "(2000.0, 3999.0)" in played.text(
        "scatter"
    )
    assert "(0, 1999)" in played.text("offset") and "(2000, 3999)" in played.text("offset")
    assert "True" in played.text("clear") and "False" not in played.text("clear")
