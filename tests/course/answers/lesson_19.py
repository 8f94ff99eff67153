"""Half the bits, and batches in pieces."""

import re

from lesson_runner import Played

WRONG = {
    "precision.1": [
        ("def sum_of(values):\n    return values[:2000].float().sum()", "add up to"),
        # torch adds in float32 and rounds the sum to bfloat16: close enough every other time.
        ("def sum_of(values):\n    return values.sum()", "two to three digits"),
    ],
    "precision.2": [
        (
            "def accumulate(model, pieces):\n    for x, y in pieces:\n        model.zero_grad()\n"
            "        F.cross_entropy(model(x), y).backward()",
            "not that of the whole",
        ),
        (
            "def accumulate(model, pieces):\n    for x, y in pieces:\n"
            "        (F.cross_entropy(model(x), y) / len(x)).backward()",
            "not that of the whole",
        ),
        # The whole batch at once, which would not fit into memory.
        (
            "def accumulate(model, pieces):\n    x, y = map(torch.cat, zip(*pieces))\n"
            "    F.cross_entropy(model(x), y).backward()",
            "rows are held at a time",
        ),
        (
            "def accumulate(model, pieces):\n"
            "    losses = [F.cross_entropy(model(x), y) for x, y in pieces]\n"
            "    (sum(losses) / len(losses)).backward()",
            "rows are held at a time",
        ),
    ],
    "precision.3": [
        ("def scale_for(largest):\n    return 65504 / largest", "not a power of two"),
        (
            "import math\n\n\ndef scale_for(largest):\n    return 2.0 ** math.ceil(math.log2(65504 / largest))",
            "overflows float16",
        ),
    ],
}


def claims(played: Played) -> None:
    said = played.text("formats")
    assert "3.4e+38" in said and "6.55e+04" in said and "0.0078" in said
    assert "stops growing" in played.verdicts["precision.1"][0][1]
    assert "times as large" in played.verdicts["precision.2"][0][1]
    accuracies = [float(each) for each in re.findall(r"': (0\.\d+)", played.text("train"))]
    assert len(accuracies) in (3, 6) and min(accuracies) > 0.85
    assert max(accuracies) - min(accuracies) < 0.05
    assert "True" in played.text("same") and "False" not in played.text("same")
