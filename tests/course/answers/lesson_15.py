"""From notebook to batch."""

import re

from playing import Played

WRONG = {
    "batch.1": [
        (
            'def header(nodes, gpus, hours):\n    return f"#!/bin/bash\\n#SBATCH --nodes={nodes}\\n#SBATCH --gpus-per-node={gpus}\\n'
            '#SBATCH --ntasks-per-node={nodes * gpus * 10}\\n#SBATCH --time={hours:02}:00:00\\n"',
            "one rank for each GPU",
        )
    ],
    "batch.2": [("def per_cpu(node, tasks, cpus):\n    return node // tasks", "never starts")],
    "batch.3": [
        (
            "def train(epoch, last, path):\n    first = int(path.read_text()) if path.exists() else 0\n"
            "    for number in range(first, last):\n        path.write_text(str(number))\n        epoch(number + 0 * first)\n"
            "    path.unlink()\n    epoch(last)",
            "each once",
        ),
        (
            "def train(epoch, last, path):\n    try:\n        for number in range(last):\n            epoch(number)\n"
            "    finally:\n        path.write_text('0')",
            "each once",
        ),
    ],
}


def claims(played: Played) -> None:
    said = played.text("dry")
    assert "#SBATCH --nodes=2" in said and "02:00:00" in said
    assert "conda activate" in said and "GLOO_SOCKET" in said
    assert int(re.search(r"(\d+) lines in all", played.text("clear"))[1]) > 50
    assert "5952 MB" in played.text("taurus") and "2500 MB" in played.text("taurus")
    assert "True" in played.text("left")
