"""Data parallelism with Keras."""

from __future__ import annotations

from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.course.exercises.horovod_exercises import NODES, one_node_per_rank


@exercise("keras.1", answer="compiled", limit=60)
def optimizer(learner: Learner) -> None:
    """Check a compiled model: Horovod's optimizer, with a scaled learning rate."""
    import keras
    import numpy

    compiled = learner.function("compiled")
    rate = round(learner.chance.uniform(0.01, 0.05), 3)
    keras.utils.set_random_seed(learner.seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    before = numpy.random.default_rng(learner.seed).uniform(0.2, 0.6, (4, 1)).astype("float32")
    model.set_weights([before])
    result = compiled(model, rate)
    model = model if result is None else result
    if getattr(model, "optimizer", None) is None:
        raise Wrong("the model is not compiled: call model.compile(…)")
    found = float(numpy.asarray(model.optimizer.learning_rate))
    if abs(found - rate * learner.size) > 1e-6:
        raise Wrong(
            f"with a rate of {rate} for one rank, {learner.size} ranks learn with "
            f"{rate * learner.size:g}: you have {found:g}"
        )
    momentum = getattr(model.optimizer, "momentum", 0.0)
    if abs(momentum - 0.9) > 1e-6:
        raise Wrong(f"the optimizer's momentum should be 0.9, and is {momentum}")
    x = numpy.full((8, 4), learner.rank + 1.0, "float32")
    model.fit(x, numpy.zeros((8, 1), "float32"), epochs=1, batch_size=8, verbose=0)
    after = model.get_weights()[0]
    if numpy.allclose(before, after):
        raise Wrong("a step of training does not change the weights")
    means = _of_all(after)
    if not all(numpy.allclose(each, after.ravel(), atol=1e-5) for each in means):
        raise Wrong(
            "after one step from the same weights the ranks have different ones: the optimizer "
            "does not average gradients. Wrap it in hvd.DistributedOptimizer"
        )
    # The gradient of the mean of (x·w)², where all x on a rank equal its number plus one.
    squares = [(rank + 1) ** 2 for rank in range(learner.size)]
    gradient = 2 * float(before.sum()) * sum(squares) / learner.size
    times = float((before - after).mean()) / (rate * learner.size * gradient)
    if not any(abs(times / each - 1) < 0.01 for each in (1.0, 1.9)):  # 1 + momentum: Nesterov
        raise Wrong(
            f"a step is {times:.3g} times as large as with the average of all ranks' gradients: "
            "leave it to hvd.DistributedOptimizer to average, which is its default"
        )


@exercise("keras.2", answer="callbacks", limit=90)
def callbacks(learner: Learner) -> None:
    """Check that the callbacks give all ranks the weights of rank 0, and average each metric before
    another callback reads it."""
    import keras
    import numpy

    make = learner.function("callbacks")
    hvd = _horovod()
    keras.utils.set_random_seed(learner.seed + learner.rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer=wrapped, loss="mse")
    made = make()
    if not isinstance(made, (list, tuple)) or not made:
        raise Wrong(f"callbacks() should return a list of callbacks, and gives {made!r}"[:300])
    read = _reads(made)
    x = numpy.random.default_rng([learner.seed, learner.rank]).normal(size=(16, 3))
    begun: list[Any] = []  # weights after the first batch, before and after the callbacks

    def note(batch: int, logs: Any = None) -> None:
        if batch == 0:
            begun.append(_weights(model))

    first, last = (keras.callbacks.LambdaCallback(on_train_batch_end=note) for _ in range(2))
    every = [first, *made, last]
    told = model.fit(x, x.sum(1), epochs=1, batch_size=8, callbacks=every, verbose=0)
    weights = _of_all(_weights(model))
    if not all(numpy.allclose(each, weights[0], atol=1e-5) for each in weights):
        raise Wrong(
            "the ranks hold different weights: BroadcastGlobalVariablesCallback gives all of them "
            "those of rank 0"
        )
    if not _of_all(numpy.array([numpy.allclose(begun[0], begun[-1], atol=1e-5)]))[0][0]:
        raise Wrong(
            "rank 0 is given the weights of another rank: all ranks should get those of rank 0, as "
            "root_rank=0 says"
        )
    losses = _of_all(numpy.array([told.history["loss"][-1]], "float64"))
    if not all(numpy.allclose(each, losses[0], rtol=1e-4) for each in losses):
        raise Wrong(
            "each rank reports its own loss: MetricAverageCallback averages the losses, if it "
            "comes before the callbacks that use them"
        )
    if not read:
        raise Wrong("there is no ReduceLROnPlateau in the list: it watches the loss after epochs")
    for name, values in read.items():
        if values[-1:] in ([], [None]):
            raise Wrong(f'{name} monitors a metric that is not reported: use monitor="loss"')
        seen = _of_all(numpy.array(values[-1:], "float64"))
        if not all(numpy.allclose(each, seen[0], rtol=1e-4) for each in seen):
            raise Wrong(
                f"{name} reads another loss on each rank, so that one would lower its rate before "
                "the others: it has to come after MetricAverageCallback"
            )


def _reads(made: Any) -> dict[str, list[Any]]:
    """Record the value that each callback that monitors a metric reads at the end of each epoch, by
    class name. Return an empty dict if there is no ReduceLROnPlateau."""
    import keras

    found: dict[str, list[Any]] = {}
    if any(isinstance(each, keras.callbacks.ReduceLROnPlateau) for each in made):
        for each in (one for one in made if hasattr(one, "monitor")):
            _note_read(each, found.setdefault(type(each).__name__, []))
    return found


def _note_read(callback: Any, values: list[Any]) -> None:
    own = callback.on_epoch_end

    def on_epoch_end(epoch: int, logs: Any = None) -> None:
        values.append((logs or {}).get(callback.monitor))
        own(epoch, logs)

    callback.on_epoch_end = on_epoch_end


@exercise("keras.3", answer="checkpoints", ranks=2)
def checkpoints(learner: Learner) -> None:
    """Check that rank 0 alone has a checkpoint callback."""
    import keras

    make = learner.function("checkpoints")
    with one_node_per_rank(_horovod(), learner):
        made = make("weights.keras", learner.rank)
    savers = [c for c in made or [] if isinstance(c, keras.callbacks.ModelCheckpoint)]
    if learner.rank == 0 and not savers:
        raise Wrong("rank 0 has no ModelCheckpoint in its list")
    if learner.rank == 0 and savers[0].filepath != "weights.keras":
        raise Wrong(f"it should save to `path`, weights.keras, and saves to {savers[0].filepath}")
    if learner.rank != 0 and savers:
        raise Wrong(
            f"rank {learner.rank} would write the checkpoint, too: only rank 0 should{NODES}"
        )
    if not isinstance(made, list):
        raise Wrong(
            f"on rank {learner.rank}, checkpoints() returns {made!r}: return a list, even if it is "
            "empty"
        )


def _weights(model: Any) -> Any:
    import numpy

    return numpy.concatenate([each.ravel() for each in model.get_weights()])


def _horovod() -> Any:
    import horovod.tensorflow.keras as hvd

    return hvd


def _of_all(array: Any) -> list[Any]:
    """Return the flattened arrays of all ranks, by rank."""
    import numpy

    hvd = _horovod()
    flat = numpy.asarray(array, "float64").reshape(1, -1)
    return list(numpy.asarray(hvd.allgather(flat)))
