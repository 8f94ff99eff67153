"""Large batches and warm-up."""

import re

from lesson_runner import Played

WRONG = {
    "large.1": [
        ("def scaled(rate, batch, larger):\n    return rate * (larger / batch) ** 0.5", "becomes"),
        ("def scaled(rate, batch, larger):\n    return rate * (larger // batch)", "becomes"),
    ],
    "large.2": [
        ("def warmed_up(step, rate, steps):\n    return rate * step / steps", "beyond"),
        (
            "def warmed_up(step, rate, steps):\n    return rate if step >= steps else 0.0",
            "half-way",
        ),
        (
            "def warmed_up(step, rate, steps):\n    if step < steps:\n"
            "        return rate * (step + 1) / steps",
            "gives None",
        ),
        (
            "import math\n\ndef warmed_up(step, rate, steps):\n"
            "    return rate * (1 - math.cos(math.pi * min(1, step / steps))) / 2",
            "does not climb evenly",
        ),
    ],
    "large.3": [
        ("def steps_for(images, batch, ranks):\n    return -(-images // (batch * ranks))", "whole"),
        ("def steps_for(images, batch, ranks):\n    return images // batch", "whole"),
    ],
}


def claims(played: Played) -> None:
    said = played.text("small")
    small, large = (
        {float(n) for n in re.findall(rf"batch {batch}, rate 0.0375: accuracy ([\d.]+)", said)}
        for batch in (16, 128)
    )
    assert min(small) > 0.9 and large
    speeds = re.findall(r"'batch 16, rate 0.0375': (\d+), 'batch 128, rate 0.0375': (\d+)", said)
    assert speeds and all(int(more) > int(few) for few, more in speeds)
    assert ends(played, "blow") and max(ends(played, "blow")) < 0.3
    assert ends(played, "warm") and min(ends(played, "warm")) > 0.9
    assert "accuracy over epoch" in played.text("curves")
    assert played.text("same").strip().endswith("True")
    assert "40,036 steps" in played.text("imagenet")


def ends(played: Played, cell: str) -> list[float]:
    """Return the ranks' accuracies that a cell's last expression shows."""
    return [float(n) for n in re.findall(r"ranks? [\d–, -]+: ([\d.]+)", played.text(cell))]
