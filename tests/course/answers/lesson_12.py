"""Find the straggler."""

import re

from lesson_runner import Played

WRONG = {
    "straggler.1": [
        (
            "from rankroom.course.planted import planted\n\nculprit = (planted() + 1) % size",
            "it was not rank",
        )
    ],
    "straggler.2": [
        ("def prefetched(batches):\n    yield from list(batches)", "one after the other"),
        ("def prefetched(batches):\n    return [next(iter(batches))]", "it yields"),
    ],
    "straggler.3": [
        (
            "def fused(tensors):\n    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])\n"
            "    return hvd.allreduce(flat).split([tensor.numel() for tensor in tensors])",
            "came back as",
        ),
        (
            "from horovod.torch import allreduce\n\n\ndef fused(tensors):\n"
            "    return [allreduce(tensor) for tensor in tensors]",
            "call it by its module",
        ),
    ],
}


RIGHT = {
    "straggler.3": [
        "def fused(tensors):\n    return hvd.grouped_allreduce(tensors, op=hvd.Average)",
    ],
}


def claims(played: Played) -> None:
    said = played.text("profile")
    assert re.search(r"rank \d", said) and "allreduce" in said
    before, after = map(float, re.findall(r": ([\d.]+) s", played.text("repaired")))
    assert before > 0.3 and after < before / 2
    assert re.search(r"allreduce +\d+ calls", played.text("flat"))
    one, many = map(int, re.findall(r"(\d+) ms", played.text("compare")))
    assert many < one
