"""Data parallelism with TensorFlow."""

import re

from lesson_runner import Played

WRONG = {
    "tf.1": [
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    return dataset.shard(size, rank).shuffle(10_000).batch(batch)",
            "drop_remainder",
        ),
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    return dataset.shard(size, rank).batch(batch, drop_remainder=True)",
            "original order",
        ),
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    return dataset.shard(size, rank).shuffle(10_000).batch(batch, drop_remainder=True)",
            "equally many",
        ),
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    even = dataset.take(len(dataset) // size * size)\n"
            "    return even.shard(size, rank).shuffle(2).batch(batch, drop_remainder=True)",
            "hardly move|original order",
        ),
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    even = dataset.take(len(dataset) // size * size).shard(size, rank)\n"
            "    return even.batch(batch, drop_remainder=True).shuffle(10_000)",
            "shuffle before you batch",
        ),
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    even = dataset.take(len(dataset) // 2 * 2)\n"
            "    return even.shard(2, rank).shuffle(10_000).batch(batch, drop_remainder=True)",
            "Index|index|parts of two ranks|equally many",
        ),
        # Disjoint if computed in one process, but each rank shuffles with a seed of its own.
        (
            "def part_of(dataset, batch, rank, size):\n"
            "    seed, even = hvd.rank() + 1, len(dataset) // size * size\n"
            "    mixed = dataset.shuffle(10_000, seed, reshuffle_each_iteration=False).take(even)\n"
            "    return mixed.shard(size, rank).batch(batch, drop_remainder=True)",
            "the same on all ranks",
        ),
    ],
    "tf.2": [
        (
            "def gradients(model, x, y):\n    return [tf.zeros_like(v) for v in model.trainable_variables]",
            "not the average",
        ),
        (
            "def gradients(model, x, y):\n    with tf.GradientTape() as tape:\n"
            "        loss = loss_of(y, model(x))\n"
            "    return tape.gradient(loss, model.trainable_weights)",
            "this rank's own",
        ),
    ],
    "tf.3": [
        (
            "def same_start(model, optimizer):\n    hvd.broadcast_variables(optimizer.variables, root_rank=0)",
            "weights of rank 1",
        )
    ],
}

RIGHT = {
    "tf.1": [
        "def part_of(dataset, batch, rank, size):\n    even = len(dataset) // size * size\n"
        "    mixed = dataset.shuffle(10_000, seed=1, reshuffle_each_iteration=False).take(even)\n"
        "    return mixed.shard(size, rank).batch(batch, drop_remainder=True)",
    ],
}


def claims(played: Played) -> None:
    assert len(set(re.findall(r"'([0-9a-f]{8})'", played.text("train")))) == 1
    assert len(set(re.findall(r"'([0-9a-f]{8})'", played.text("apart")))) == played.ranks
    assert re.search(r"images per second': [1-9]\d*", played.text("train"))
    assert all(float(n) > 0.85 for n in re.findall(r"0\.\d+", played.text("test")))
    assert "saved as digits-1" in played.text("save")
