"""Data parallelism with TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.course.exercises.horovod_exercises import another_size, demand_disjoint


@exercise("tf.1", answer="part_of", ranks=1)
def shard(learner: Learner) -> None:
    """Check the ranks' batches: disjoint, of one size, shuffled, and equal in number."""
    part = learner.function("part_of")
    batch = learner.chance.randrange(4, 9)
    own: list[int] = []
    for size in (learner.size, another_size(learner.size)):
        whole = size * batch * learner.chance.randrange(6, 9)
        # Once with more values than divide evenly, and once with one too few for the last batch.
        for count in (whole + size + 1, whole - 1):
            seen = _examine_parts(size, part, count, batch)
            own = seen[learner.rank] if size == learner.size else own
    hvd = sys.modules.get("horovod.tensorflow")
    if hvd is not None and hvd.is_initialized():
        demand_disjoint(hvd.allgather_object(own))


def _examine_parts(size: int, part: Any, count: int, batch: int) -> list[list[int]]:
    """Return the values that each rank gets, by rank. Raises Wrong."""
    import tensorflow as tf

    seen: list[list[int]] = []
    steps = []
    for rank in range(size):
        dataset = part(tf.data.Dataset.range(count), batch, rank, size)
        if not isinstance(dataset, tf.data.Dataset):
            raise Wrong(f"part_of returns {type(dataset).__name__}, and should return a dataset")
        batches = [each.numpy().tolist() for each in dataset]
        if any(not isinstance(each, list) for each in batches):
            raise Wrong("its elements are single values: make batches of them")
        sizes = {len(each) for each in batches}
        if sizes != {batch}:
            raise Wrong(
                f"all batches should hold {batch} values, and there are some of "
                f"{', '.join(map(str, sorted(sizes - {batch})))}: drop_remainder=True leaves out "
                "the last one"
            )
        steps.append(len(batches))
        seen.append([each for values in batches for each in values])
    together = [each for values in seen for each in values]
    if len(set(together)) < len(together):
        raise Wrong("some values are in the parts of two ranks: shard before you shuffle")
    if len(set(steps)) > 1:
        raise Wrong(
            f"of {count} values, the ranks get {', '.join(map(str, steps))} batches: all of them "
            "need equally many"
        )
    if steps[0] < count // size // batch:
        raise Wrong(f"{count // size // batch} batches are possible, you make {steps[0]}")
    if seen[0] == sorted(seen[0]):
        raise Wrong("the values are still in their original order: shuffle them")
    batches = [seen[0][at : at + batch] for at in range(0, len(seen[0]), batch)]
    if all(each == sorted(each) for each in batches):
        raise Wrong(
            "only the order of the batches changes, not what is in them: shuffle before you batch"
        )
    ordered = sorted(seen[0])
    if max(ordered.index(value) - place for place, value in enumerate(seen[0])) < len(ordered) / 4:
        raise Wrong("the values hardly move: shuffle draws from a buffer, which is too small here")
    return seen


@exercise("tf.2", answer="gradients", limit=60)
def tape(learner: Learner) -> None:
    """Check that the gradients are averaged over all ranks."""
    import horovod.tensorflow as hvd
    import numpy
    import tensorflow as tf

    ask = learner.function("gradients")
    model, loss_of = _model(learner), _loss()
    own = numpy.random.default_rng([learner.seed, learner.rank])
    x = tf.constant(own.normal(size=(6, 5)), tf.float32)
    y = tf.constant(own.integers(0, 3, 6))
    with tf.GradientTape() as plain:
        loss = loss_of(y, model(x))
    alone = plain.gradient(loss, model.trainable_variables)
    wanted = [hvd.allreduce(each, op=hvd.Average).numpy() for each in alone]
    found = ask(model, x, y)
    if found is None or len(found) != len(wanted):
        raise Wrong(f"there are {len(wanted)} variables to train: one gradient for each, please")
    for each, right, mine in zip(found, wanted, alone, strict=True):
        got = tf.convert_to_tensor(each).numpy()
        if not numpy.allclose(got, right, rtol=1e-4, atol=1e-6):
            own_ones = learner.size > 1 and numpy.allclose(got, mine.numpy(), rtol=1e-4, atol=1e-6)
            hint = ": they are this rank's own" if own_ones else ""
            raise Wrong(f"the gradients on rank {learner.rank} are not the average{hint}")


@exercise("tf.3", answer="same_start", limit=60)
def start(learner: Learner) -> None:
    """Check that weights and optimizer state are those of rank 0 on all ranks."""
    import horovod.tensorflow as hvd
    import numpy
    import tensorflow as tf

    share = learner.function("same_start")
    model = _model(learner, own=True)
    optimizer = tf.keras.optimizers.SGD(0.1 * (learner.rank + 1), momentum=0.9)
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones_like(v) * (learner.rank + 1) for v in model.trainable_variables])
    wanted = [v.numpy() for v in model.variables]
    state = [v.numpy() for v in optimizer.variables]
    roots = hvd.broadcast_object([wanted, state], root_rank=0, name=f"wanted.{learner.seed}")
    share(model, optimizer)
    for what, variables, right in (
        ("weights", model.variables, roots[0]),
        ("the optimizer's variables", optimizer.variables, roots[1]),
    ):
        for variable, value in zip(variables, right, strict=True):
            if not numpy.allclose(variable.numpy(), value):
                raise Wrong(
                    f"{what} of rank {learner.rank} are not those of rank 0 "
                    f"({getattr(variable, 'path', variable.name)})"
                )


def _model(learner: Learner, own: bool = False) -> Any:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(learner.seed + (learner.rank if own else 0))
    return tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(3)])


def _loss() -> Any:
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
