"""Data parallelism with Keras."""

import re

from lesson_runner import Played

WRONG = {
    "keras.1": [
        (
            "def compiled(model, rate):\n    optimizer = keras.optimizers.SGD(rate * size, momentum=0.9)\n"
            "    model.compile(optimizer=optimizer, loss='mse')\n    return model",
            "does not average gradients",
        ),
        (
            "def compiled(model, rate):\n    optimizer = keras.optimizers.SGD(rate * size)\n"
            "    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss='mse')\n"
            "    return model",
            "momentum",
        ),
        # Sums the gradients instead of averaging them: equal on all ranks, but too large.
        (
            "def compiled(model, rate):\n    optimizer = keras.optimizers.SGD(rate * size, momentum=0.9)\n"
            "    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)\n"
            "    model.compile(optimizer=optimizer, loss='mse')\n    return model",
            "times as large as with the average",
        ),
    ],
    "keras.2": [
        (
            "def callbacks():\n    return [hvd.callbacks.MetricAverageCallback()]",
            "different weights",
        ),
        (
            "def callbacks():\n    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]",
            "reports its own loss",
        ),
        (
            "def callbacks():\n    return [\n        hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n"
            "        hvd.callbacks.MetricAverageCallback(),\n    ]",
            "no ReduceLROnPlateau",
        ),
        (
            "def callbacks():\n    return [\n        hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n"
            "        keras.callbacks.ReduceLROnPlateau(monitor='loss'),\n"
            "        hvd.callbacks.MetricAverageCallback(),\n    ]",
            "has to come after MetricAverageCallback",
        ),
        (
            "def callbacks():\n    return [\n        hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n"
            "        hvd.callbacks.MetricAverageCallback(),\n"
            "        keras.callbacks.ReduceLROnPlateau(),\n    ]",
            "monitor=",
        ),
        (
            "def callbacks():\n    return [\n        hvd.callbacks.BroadcastGlobalVariablesCallback(1),\n"
            "        hvd.callbacks.MetricAverageCallback(),\n"
            "        keras.callbacks.ReduceLROnPlateau(monitor='loss'),\n    ]",
            "the weights of another rank",
        ),
    ],
    "keras.3": [
        (
            "def checkpoints(path, rank):\n    return [keras.callbacks.ModelCheckpoint(path)] if rank else []",
            "rank",
        ),
        (
            "def checkpoints(path, rank):\n"
            "    return [keras.callbacks.ModelCheckpoint('x.keras')] if rank == 0 else []",
            "it should save to",
        ),
        # Saves on one rank of each node, not on rank 0 alone.
        (
            "def checkpoints(path, rank):\n    if hvd.local_rank() == 0:\n"
            "        return [keras.callbacks.ModelCheckpoint(path)]\n    return []",
            "would write the checkpoint, too",
        ),
    ],
}

RIGHT = {
    "keras.2": [
        "def callbacks():\n    return [\n        hvd.callbacks.MetricAverageCallback(),\n"
        "        hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n"
        "        keras.callbacks.EarlyStopping(monitor='loss', patience=3),\n"
        "        keras.callbacks.ReduceLROnPlateau(monitor='loss', patience=2),\n    ]",
    ],
}


def claims(played: Played) -> None:
    said = played.text("trained")
    assert len(set(re.findall(r"weights': '(\w{8})'", said))) == 1
    assert len(set(re.findall(r"'loss': ([\d.]+)", said))) == 1
    assert set(re.findall(r"files': (\[.*?\])", said)) == {"['digits.keras']", "[]"}
    assert said.count("'digits.keras'") == 1
    assert re.search(r"[1-9][\d,]* images per second", said)
    assert len(set(re.findall(r"'([0-9a-f]{8})'", played.text("apart")))) == played.ranks
    assert all(float(n) > 0.85 for n in re.findall(r"0\.\d+", played.text("test")))
