"""Two ranks: `horovod.tensorflow` with Keras 3's variables, in custom training loops."""

import json
import os

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RNG = np.random.default_rng(RANK)
X = tf.constant(RNG.normal(size=(16, 3)), tf.float32)
Y = tf.constant(RNG.normal(size=(16, 1)), tf.float32)


def network(seed):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.Dense(4),
        keras.layers.Dense(1),
    ]
    return keras.Sequential([keras.Input((3,)), *layers])


def gathered(value):
    return np.stack(hvd.allgather_object(np.asarray(value)))


def assert_equal_everywhere(variables, what):
    for variable in variables:
        rows = gathered(variable)
        assert (rows == rows[0]).all(), f"{what} differ between the ranks: {rows}"


def gradients(model, wrap=lambda tape: tape):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    return wrap(tape).gradient(loss, model.trainable_variables)


def assert_mean(found, mine, what):
    for one, local in zip(found, mine, strict=True):
        rows = gathered(local)
        assert not np.allclose(rows[0], rows[1]), f"{what}: the ranks agree anyway"
        np.testing.assert_allclose(one, rows.mean(axis=0), rtol=1e-5, atol=1e-7, err_msg=what)


def tapes_average_gradients():
    model = network(seed=1)
    mine = gradients(model)
    lists = [model.trainable_variables[:2], model.trainable_variables[2:4]]
    for name, options in {"plain": {}, "groups": {"groups": lists}, "two": {"groups": 2}}.items():

        def wrap(tape, options=options):
            return hvd.DistributedGradientTape(tape, **options)

        assert_mean(gradients(model, wrap), mine, f"eager, {name}")
        compiled = tf.function(lambda: gradients(model, wrap))
        assert_mean(compiled(), mine, f"tf.function, {name}")
        assert_mean(compiled(), mine, f"tf.function again, {name}")

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(model.trainable_variables[0])
    local, shared = tape.get_local_and_global_gradients(loss, model.trainable_variables)
    assert len(local) == 1 and len(shared) == 5
    np.testing.assert_allclose(local[0][1], mine[0] / SIZE, rtol=1e-5)
    assert_mean([gradient for _, gradient in shared], mine[1:], "beside a local source")


def tapes_take_plain_variables_too():
    variable = tf.Variable([float(RANK + 1)])
    with tf.GradientTape() as tape:
        loss = variable * variable
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
    np.testing.assert_allclose(gradient, [SIZE + 1.0])


def variables_are_broadcast():
    for inplace in (False, True):
        model = network(seed=10 + RANK)
        optimizer = keras.optimizers.Adam(0.01 * (RANK + 1))
        optimizer.build(model.trainable_variables)
        optimizer.apply([tf.ones(v.shape) * (RANK + 1) for v in model.trainable_variables])
        root = hvd.broadcast_object([np.asarray(v) for v in model.variables], root_rank=0)
        hvd.broadcast_variables(model.variables, root_rank=0, inplace=inplace)
        hvd.broadcast_variables(optimizer.variables, root_rank=0, inplace=inplace)
        for variable, value in zip(model.variables, root, strict=True):
            np.testing.assert_array_equal(variable, value)
        assert_equal_everywhere(optimizer.variables, f"optimizer variables, inplace={inplace}")
        assert np.isclose(float(optimizer.learning_rate), 0.01)


def operations_take_variables():
    variable = keras.Variable([1.0 + RANK, 2.0], name="v")
    np.testing.assert_allclose(hvd.allreduce(variable), [1.5, 2.0])
    np.testing.assert_allclose(hvd.allreduce(variable, op=hvd.Sum), [3.0, 4.0])
    np.testing.assert_allclose(hvd.broadcast(variable, root_rank=1), [2.0, 2.0])
    np.testing.assert_allclose(hvd.allgather(variable), [1.0, 2.0, 2.0, 2.0])
    compression = hvd.Compression.fp16
    np.testing.assert_allclose(hvd.allreduce(variable, compression=compression), [1.5, 2.0])
    first, second = hvd.grouped_allreduce([variable, variable], compression=compression)
    np.testing.assert_allclose([first, second], [[1.5, 2.0]] * 2)
    for dtype in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64):
        total = hvd.allreduce(tf.constant([1, 2 + RANK], dtype), op=hvd.Sum)
        assert total.dtype == dtype and total.numpy().tolist() == [2, 5]


def optimizers_train_in_loops():
    model = network(seed=2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))

    @tf.function
    def step():
        found = gradients(model)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

    before = [np.asarray(v).copy() for v in model.trainable_variables]
    mine = gradients(model)
    step()
    moved = [(b - np.asarray(v)) / 0.1 for b, v in zip(before, model.variables, strict=True)]
    for one, local in zip(moved, mine, strict=True):
        np.testing.assert_allclose(one, gathered(local).mean(axis=0), rtol=1e-3, atol=1e-5)
    for _ in range(5):
        step()
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    assert_equal_everywhere([*model.variables, *optimizer.variables], "variables after training")


def passes_are_summed_before_they_are_reduced():
    for average, compiled in ((False, False), (True, True)):
        model = network(seed=3)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            backward_passes_per_step=3,
            average_aggregated_gradients=average,
        )

        def step(model=model, optimizer=optimizer):
            found = gradients(model)
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

        if compiled:
            step = tf.function(step)
        before = [np.asarray(v).copy() for v in model.variables]
        mine = gradients(model)
        for _ in range(2):
            step()
            for value, variable in zip(before, model.variables, strict=True):
                np.testing.assert_array_equal(value, variable)
        for count in (1, 2):
            for _ in range(3 if count > 1 else 1):
                step()
            if count == 1:
                factor = 1.0 if average else 3.0
                for b, v, local in zip(before, model.variables, mine, strict=True):
                    expected = b - 0.1 * factor * gathered(local).mean(axis=0)
                    np.testing.assert_allclose(v, expected, rtol=1e-4, atol=1e-6)
        assert int(optimizer.iterations) == 6
        assert_equal_everywhere(model.variables, "weights after two sums")


def sparse_gradients_are_gathered():
    for options in ({}, {"sparse_as_dense": True}):
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(6, 2)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        before = np.asarray(model.weights[0]).copy()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant([[RANK, 5]])))
        found = tape.gradient(loss, model.trainable_variables)
        assert isinstance(found[0], tf.IndexedSlices)
        optimizer.apply(found, model.trainable_variables)
        step = before - np.asarray(model.weights[0])
        np.testing.assert_allclose(step[:, 0], [0.5, 0.5, 0, 0, 0, 1], atol=1e-6)


def batch_norm_sees_all_batches():
    layer = hvd.SyncBatchNormalization(momentum=0.0, axis=-1)
    found = layer(X, training=True)
    everything = np.concatenate(hvd.allgather_object(X.numpy()))
    mean, variance = everything.mean(axis=0), everything.var(axis=0)
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-4, atol=1e-5)
    expected = (X.numpy() - mean) / np.sqrt(variance + layer.epsilon)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(X, training=True) * Y)
    assert all(g is not None for g in tape.gradient(loss, layer.trainable_variables))


def partial_optimizers_keep_layers_local():
    model = network(seed=5)
    mine = gradients(model)
    before = [np.asarray(v).copy() for v in model.variables]
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=model.layers[0], scale_local_gradients=False
    )
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(X, Y, batch_size=16, verbose=0)
    moved = [b - np.asarray(v) for b, v in zip(before, model.variables, strict=True)]
    for one, local in zip(moved[:2], mine[:2], strict=True):
        np.testing.assert_allclose(one, local, rtol=1e-3, atol=1e-5)
    assert_equal_everywhere(model.layers[1].variables, "shared layers")


def elastic_state_is_kept_and_shared():
    from horovod.tensorflow.keras.elastic import KerasState

    model = network(seed=20 + RANK)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    model.fit(X, Y, batch_size=16, verbose=0)
    state = KerasState(model, epoch=RANK)
    saved = [np.asarray(v).copy() for v in model.variables]
    model.fit(X, Y, batch_size=4, verbose=0)
    assert not np.allclose(model.variables[0], saved[0])
    state.restore()
    for variable, value in zip(model.variables, saved, strict=True):
        np.testing.assert_array_equal(variable, value)
    state.sync()
    assert state.epoch == 0
    assert_equal_everywhere([*model.variables, *model.optimizer.variables], "synced state")


ALONE = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "1",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "1",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
}


def graphs_follow_the_world():
    """Functions traced by ranks on their own work with two, as in a notebook that scales up."""
    together = {name: os.environ[name] for name in ALONE}
    kept = tf.Variable([8.0])
    model = network(seed=6)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build(model.trainable_variables)
    optimizer.register_local_var(model.trainable_variables[0])
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer.build((None, 3))

    def slices(mine):
        return tf.IndexedSlices(mine, tf.range(2), dense_shape=tf.constant([2]))

    @tf.function
    def sparse(mine):
        return hvd.allreduce(slices(mine), name="sparse").values

    @tf.function
    def grouped(mine):
        return hvd.grouped_allreduce([slices(mine), slices(mine)])[1].values

    @tf.function
    def local(mine):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(kept * mine)
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(kept)
        return tape.gradient(loss, [kept])[0]

    @tf.function
    def local_sparse(mine):
        table = model.trainable_variables[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, tf.range(2)) * mine[:, None])
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(table)
        return tape.gradient(loss, [table])[0].values[:, 0]

    @tf.function
    def step(mine):
        first = model.trainable_variables[0]
        before = tf.identity(first.value)
        ones = [tf.ones(each.shape) * mine[0] for each in model.trainable_variables]
        optimizer.apply(ones, model.trainable_variables)
        return before[0, :1] - first.value[0, :1]

    @tf.function
    def scattered(mine):
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = tf.reduce_sum(hvd.reducescatter(mine, op=hvd.Sum))
        return tape.gradient(loss, mine)

    @tf.function
    def scattered_together(mine):
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = tf.reduce_sum(hvd.grouped_reducescatter([mine, mine], op=hvd.Sum)[0])
        return tape.gradient(loss, mine)

    @tf.function
    def normalised(mine):
        layer(tf.ones((4, 3)) * mine[0], training=True)
        return layer.moving_mean.value[:1]

    traced = [
        sparse, grouped, local, local_sparse, step, scattered, scattered_together, normalised
    ]  # fmt: skip

    def found(mine):
        return [each(tf.constant([mine, mine])).numpy().tolist() for each in traced]

    hvd.shutdown()
    os.environ.update(ALONE, RANKROOM_SIZE=str(SIZE))
    try:
        hvd.init()
        assert found(4.0) == [[4, 4], [4, 4], [8], [4, 4], [4], [1, 1], [1, 1], [4]]
        hvd.shutdown()
    finally:
        del os.environ["RANKROOM_SIZE"]
        os.environ.update(together)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = os.environ["MORE_PORTS"].split()[0]
    hvd.init()
    mine = 2.0 * (RANK + 1)
    assert found(mine) == [
        [1, 1, 2, 2],
        [1, 1, 2, 2],
        [mine],
        [mine / 2, mine / 2],
        [mine / 2],
        [2, 2],
        [2, 2],
        [3],
    ]


for check in [
    tapes_average_gradients,
    tapes_take_plain_variables_too,
    variables_are_broadcast,
    operations_take_variables,
    optimizers_train_in_loops,
    passes_are_summed_before_they_are_reduced,
    sparse_gradients_are_gathered,
    batch_norm_sees_all_batches,
    partial_optimizers_keep_layers_local,
    elastic_state_is_kept_and_shared,
    graphs_follow_the_world,
]:
    print(f"-- {check.__name__}", flush=True)
    check()
    print("RESULT " + json.dumps({check.__name__: True}), flush=True)
