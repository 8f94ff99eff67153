"""Large batches and warm-up."""

import re

from playing import Played

WRONG = {
    "large.1": [
        ("def scaled(rate, batch, larger):\n    return rate * (larger / batch) ** 0.5", "becomes")
    ],
    "large.2": [
        ("def warmed_up(step, rate, steps):\n    return rate * step / steps", "beyond"),
        (
            "def warmed_up(step, rate, steps):\n    return rate if step >= steps else 0.0",
            "half-way",
        ),
    ],
    "large.3": [
        ("def steps_for(images, batch, ranks):\n    return -(-images // (batch * ranks))", "whole"),
        ("def steps_for(images, batch, ranks):\n    return images // batch", "whole"),
    ],
}


def last(played: Played, cell: str) -> list[float]:
    return [float(n) for n in re.findall(r"\b[01]\.\d+", played.text(cell))]


def claims(played: Played) -> None:
    small = dict(re.findall(r"'(batch[^']*)': ([\d.]+)", played.text("small")))
    assert float(small["batch 16, rate 0.0375"]) > 0.9
    blown = re.search(r"ranks 0[–-]1: ([\d.]+)", played.text("blow")) or re.search(
        r"\b(0\.\d+)\b", played.text("blow")
    )
    assert float(blown[1]) < 0.3
    warmed = [n for n in last(played, "warm") if n < 1]
    assert max(warmed) > 0.9
    assert "accuracy over epoch" in played.text("curves")
    assert played.text("same").strip().endswith("True")
    assert "40,036 steps" in played.text("imagenet")
