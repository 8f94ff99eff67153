"""DeepSpeed."""

import ast
import re

from lesson_runner import Played

WRONG = {
    "deepspeed.1": [
        (
            "def bytes_per_rank(parameters, ranks, stage):\n    return 16 * parameters / (ranks if stage else 1)",
            "stage 1",
        )
    ],
    "deepspeed.2": [
        (
            "def config(whole, micro, ranks):\n    return {'train_batch_size': whole, 'train_micro_batch_size_per_gpu': micro,\n"
            "            'gradient_accumulation_steps': whole // micro}",
            "gradient_accumulation_steps is",
        ),
        (
            "def config(whole, micro, ranks):\n    return {'train_batch_size': whole, 'train_micro_batch_size_per_gpu': micro,\n"
            "            'gradient_accumulation_steps': whole / (micro * ranks)}",
            ".0 (// gives a whole number)",
        ),
        # Correct only on two ranks, and only for four accumulation steps.
        (
            "def config(whole, micro, ranks):\n    return {'train_batch_size': whole, 'train_micro_batch_size_per_gpu': micro,\n"
            "            'gradient_accumulation_steps': whole // (micro * 2)}",
            "gradient_accumulation_steps is",
        ),
        (
            "def config(whole, micro, ranks):\n    return {'train_batch_size': whole, 'train_micro_batch_size_per_gpu': micro,\n"
            "            'gradient_accumulation_steps': 4}",
            "gradient_accumulation_steps is",
        ),
    ],
    "deepspeed.3": [
        (
            "def stage_for(parameters, ranks, room):\n    return 0 if bytes_per_rank(parameters, ranks, 0) <= room else 3",
            "the lowest stage that fits is 1",
        )
    ],
}


def claims(played: Played) -> None:
    assert "stage 0: 112.00 GB" in played.text("table") and "stage 3:  14.00 GB" in played.text(
        "table"
    )
    said = re.findall(r"stage (\d): (\{.*?\})", played.text("measure"))
    table = {int(stage): ast.literal_eval(found) for stage, found in said}
    whole = ast.literal_eval(re.search(r"\{'weights'.*\}", played.text("whole"))[0])
    share = whole["moments"] / played.ranks
    assert abs(table[1]["moments"] - share) < 0.02 * whole["moments"]
    assert abs(table[1]["weights"] - whole["weights"]) < 0.02
    share = whole["weights"] / played.ranks  # and the small ones whole
    assert abs(table[3]["weights"] - share) < 0.05 * whole["weights"]
    assert re.search(r"[1-9][\d,]* tokens per second", played.text("train"))
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", played.text("train"))]
    assert losses[-1] < losses[0]
    for right, always in re.findall(r"(0\.\d+) right, (0\.\d+) by", played.text("test")):
        assert float(right) > float(always)
    assert "right" in played.text("test")
