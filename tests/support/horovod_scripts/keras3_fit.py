"""Two ranks: the numerical effects of Horovod on `model.fit` in Keras 3.

MODULE is horovod.tensorflow.keras or horovod.keras; if ONLY is set, it names the checks to run.
"""

import importlib
import json
import os
import warnings
from pathlib import Path

import horovod.tensorflow as hvd_tf
import keras
import numpy as np
import tensorflow as tf

hvd = importlib.import_module(os.environ["MODULE"])
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
FOLDER = Path(os.environ["FOLDER"])
RNG = np.random.default_rng(RANK)
X = RNG.normal(size=(32, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def network(seed, hidden=4):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(hidden, activation="tanh"),
            keras.layers.Dense(hidden, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )


def gathered(value):
    """The value on every rank, one row each."""
    return np.stack(hvd_tf.allgather_object(np.asarray(value)))


def values(variables):
    return [np.asarray(variable).copy() for variable in variables]


def assert_close(found, expected, what, rtol=1e-4, atol=1e-6):
    assert len(found) == len(expected), what
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=what)


def assert_equal_everywhere(variables, what):
    for variable in variables:
        rows = gathered(variable)
        assert (rows == rows[0]).all(), f"{what} differ between the ranks: {rows}"


def local_gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    return [np.array(g) for g in tape.gradient(loss, model.trainable_variables)]


def mean_over_ranks(arrays):
    return [gathered(array).mean(axis=0) for array in arrays]


def one_step_is_the_mean_of_gradients():
    for eager, groups in ((False, None), (True, None), (False, 2), (False, "lists")):
        model = network(seed=1)
        before = values(model.trainable_variables)
        mine = local_gradients(model, X, Y)
        expected = mean_over_ranks(mine)
        assert any(not np.allclose(g, e) for g, e in zip(mine, expected, strict=True))
        if groups == "lists":
            groups = [model.trainable_variables[:3], model.trainable_variables[3:5]]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=groups)
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
        model.fit(X, Y, batch_size=32, epochs=1, verbose=0)
        moved = [b - a for b, a in zip(before, values(model.trainable_variables), strict=True)]
        assert_close(moved, expected, f"the step with eager={eager} groups={groups}")


def broadcast_gives_everyone_the_roots():
    model = network(seed=10 + RANK)
    root = hvd_tf.broadcast_object(values(model.trainable_variables), root_rank=0)
    step = [0.5 * g for g in mean_over_ranks(local_gradients(model, X, Y))]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9))
    model.compile(optimizer=optimizer, loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(X, Y, batch_size=32, epochs=1, verbose=0, callbacks=[callback])
    expected = [weight - change for weight, change in zip(root, step, strict=True)]
    assert_close(values(model.trainable_variables), expected, "weights after the broadcast")
    assert_equal_everywhere([*model.weights, *optimizer.variables], "variables")
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert_equal_everywhere([*model.weights, *optimizer.variables], "variables after training")


def some_variables_stay_local():
    model = network(seed=20 + RANK)
    keep = model.layers[0].kernel
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[keep])
    model.fit(X, Y, batch_size=32, epochs=1, verbose=0, callbacks=[callback])
    assert not np.allclose(gathered(keep)[0], gathered(keep)[1])
    assert_equal_everywhere(model.layers[1].variables, "broadcast weights")

    model = network(seed=2)
    before = values(model.trainable_variables)
    mine = local_gradients(model, X, Y)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for variable in model.layers[0].trainable_variables:
        optimizer.register_local_var(variable)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(X, Y, batch_size=32, epochs=1, verbose=0)
    moved = [b - a for b, a in zip(before, values(model.trainable_variables), strict=True)]
    expected = [g / SIZE for g in mine[:2]] + mean_over_ranks(mine)[2:]
    assert_close(moved, expected, "the step with local variables")


class Note(keras.callbacks.Callback):
    """Keeps the logs and learning rates that a callback sees at this position in the list."""

    def __init__(self):
        super().__init__()
        self.logs, self.rates = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))


def metrics_are_averaged():
    model = network(seed=3)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    before, after = Note(), Note()
    history = model.fit(
        X,
        Y,
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=(X[:4], Y[:4]),
        callbacks=[before, hvd.callbacks.MetricAverageCallback(), after],
    ).history
    for epoch in range(2):
        assert set(after.logs[epoch]) == {"loss", "mae", "val_loss", "val_mae"}
        for name, value in after.logs[epoch].items():
            mine = gathered(before.logs[epoch][name])
            assert mine[0] != mine[1], f"{name} is the same on both ranks; the test shows nothing"
            assert np.isclose(value, mine.mean(), rtol=1e-6), name
            assert history[name][epoch] == value


def rates_warm_up_and_follow_schedules():
    steps, epochs, rate = 4, 3, 0.1 * SIZE
    note = Note()
    model = network(seed=4)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), loss="mse")
    warm_up = hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2, verbose=1)
    history = model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[warm_up, note])
    done = [min(1.0, (i + 1) / (2 * steps)) for i in range(steps * epochs)]
    expected = [rate / SIZE * (1 + d * (SIZE - 1)) for d in done]
    np.testing.assert_allclose(note.rates, expected, rtol=1e-5)
    assert np.isclose(note.rates[-1], 0.1 * SIZE) and np.isclose(history.history["lr"][-1], rate)

    note = Note()
    schedule = hvd.callbacks.LearningRateScheduleCallback
    callbacks = [
        schedule(0.2, multiplier=1.0, end_epoch=1),
        schedule(0.2, multiplier=lambda epoch: 0.5 * epoch, start_epoch=1, end_epoch=3),
        schedule(0.2, multiplier=0.1, start_epoch=3),
        note,
    ]
    model.fit(X, Y, batch_size=32, epochs=5, verbose=0, callbacks=callbacks)
    np.testing.assert_allclose(note.rates, [0.2, 0.1, 0.2, 0.2, 0.02], rtol=1e-5)

    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    model.compile(optimizer=hvd.DistributedOptimizer(scheduled), loss="mse")
    try:
        model.fit(X, Y, epochs=1, verbose=0, callbacks=[schedule(0.2, multiplier=1.0)])
    except ValueError as error:
        assert "schedule of its own" in str(error)
    else:
        raise AssertionError("a schedule beside a schedule was accepted")
    model.fit(X, Y, epochs=1, verbose=0)


def momentum_follows_the_rate():
    """With a constant gradient g: v <- m * (new / old) * v - new * g, and w <- w + v."""
    for make in (keras.optimizers.SGD, keras.optimizers.RMSprop):
        weight = {}
        for correct in (True, False):
            model = keras.Sequential(
                [
                    keras.Input((1,)),
                    keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
                ]
            )
            options = {"momentum": 0.5}
            model.compile(
                optimizer=hvd.DistributedOptimizer(make(0.1, **options)),
                loss=lambda y, p: p,
            )
            rates = [0.1, 0.2, 0.2, 0.05]
            follow = hvd.callbacks.LearningRateScheduleCallback(
                1.0, lambda epoch, rates=rates: rates[epoch], momentum_correction=correct
            )
            ones = np.ones((4, 1), "float32")
            model.fit(ones, ones, batch_size=4, epochs=4, verbose=0, callbacks=[follow])
            weight[correct] = np.asarray(model.weights[0]).item()
        if make is keras.optimizers.SGD:
            expected, velocity, old = 1.0, 0.0, 0.1
            for new in rates:
                velocity = 0.5 * (new / old) * velocity - new
                expected, old = expected + velocity, new
            assert np.isclose(weight[True], expected, rtol=1e-5), (weight, expected)
        assert not np.isclose(weight[True], weight[False])


def saved_models_go_on():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)
    for plain in (keras.optimizers.Adam(0.01), keras.optimizers.SGD(rate, momentum=0.9)):
        model = network(seed=5)
        model.compile(optimizer=hvd.DistributedOptimizer(plain), loss="mse")
        train = {"batch_size": 8, "shuffle": False, "verbose": 0}
        model.fit(X, Y, epochs=2, **train)
        if RANK == 0:
            model.save(FOLDER / "model.keras")
        hvd_tf.allreduce(tf.constant(0.0), name="saved")
        loaded = hvd.load_model(FOLDER / "model.keras")
        assert_close(values(loaded.optimizer.variables), values(model.optimizer.variables), "state")
        model.fit(X, Y, epochs=1, **train)
        loaded.fit(X, Y, epochs=1, **train)
        assert_close(values(loaded.weights), values(model.weights), "weights of both")
        assert_equal_everywhere(loaded.weights, "weights of a loaded model")
        without = keras.models.load_model(FOLDER / "model.keras")
        assert type(without.optimizer) is type(plain), "loading without Horovod"

    class Own(keras.optimizers.SGD):
        pass

    model = network(seed=5)
    model.compile(optimizer=hvd.DistributedOptimizer(Own(0.1)), loss="mse")
    model.fit(X, Y, epochs=1, verbose=0)
    if RANK == 0:
        model.save(FOLDER / "own.keras")
    hvd_tf.allreduce(tf.constant(0.0), name="saved")
    loaded = hvd.load_model(FOLDER / "own.keras", custom_optimizers=[Own])
    assert isinstance(loaded.optimizer, Own)
    loaded.fit(X, Y, epochs=1, verbose=0)
    assert_equal_everywhere(loaded.weights, "weights with an optimizer of one's own")


def a_built_optimizer_keeps_its_state():
    model = network(seed=6)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    model.fit(np.ones((8, 3)), np.ones((8, 1)), epochs=2, verbose=0)
    state = values(model.optimizer.variables)
    distributed = hvd.DistributedOptimizer(model.optimizer)
    assert_close(values(distributed.variables), state, "copied state")
    assert values(distributed.variables())[0] == 2
    again = hvd.DistributedOptimizer(distributed)
    assert_close(values(again.variables), state, "state copied twice")


def what_is_excluded_from_weight_decay_stays_so():
    def made(wrap, scaled):
        layer = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
        model = keras.Sequential([keras.Input((2,)), layer])
        plain = keras.optimizers.SGD(0.5, weight_decay=0.5)
        plain.exclude_from_weight_decay(var_list=[layer.kernel], var_names=["nothing", "bias"])
        optimizer = wrap(keras.optimizers.LossScaleOptimizer(plain) if scaled else plain)
        zeros = [tf.zeros(each.shape) for each in model.trainable_variables]
        optimizer.apply(zeros, model.trainable_variables)
        again = wrap(optimizer)  # of an optimizer that is already built
        again.apply(zeros, model.trainable_variables)
        return values(model.weights)

    for scaled in (False, True):
        expected = [np.ones((2, 1)), np.ones(1)]
        assert_close(made(lambda optimizer: optimizer, scaled), expected, "weights without Horovod")
        assert_close(made(hvd.DistributedOptimizer, scaled), expected, f"weights, scaled={scaled}")


def xla_is_kept_out():
    model = network(seed=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer=optimizer, loss="mse", jit_compile=True)
    assert model.jit_compile is False
    assert any("jit_compile is off" in str(warning.message) for warning in caught)
    model.fit(X, Y, epochs=1, verbose=0)
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    assert model.jit_compile is True, "models without Horovod keep XLA"


def an_overflow_on_one_rank_skips_the_step_on_all():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network(seed=8)
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        bad = X.copy()
        if RANK == 1:
            bad[:] = 1e30
        model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
        weights = values(model.weights)
        scale = float(model.optimizer.dynamic_scale)
        model.fit(bad, Y, batch_size=32, epochs=1, verbose=0)
        assert_close(values(model.weights), weights, "weights after an overflow")
        assert float(model.optimizer.dynamic_scale) == scale / 2
        model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
        assert not np.allclose(values(model.weights)[0], weights[0])
        assert_equal_everywhere(model.weights, "weights in mixed precision")
    finally:
        keras.config.set_dtype_policy("float32")


for check in [
    one_step_is_the_mean_of_gradients,
    broadcast_gives_everyone_the_roots,
    some_variables_stay_local,
    metrics_are_averaged,
    rates_warm_up_and_follow_schedules,
    momentum_follows_the_rate,
    saved_models_go_on,
    a_built_optimizer_keeps_its_state,
    what_is_excluded_from_weight_decay_stays_so,
    xla_is_kept_out,
    an_overflow_on_one_rank_skips_the_step_on_all,
]:
    if check.__name__ not in os.environ.get("ONLY", check.__name__):
        continue
    print(f"-- {check.__name__}", flush=True)
    check()
    print("RESULT " + json.dumps({check.__name__: True}), flush=True)
