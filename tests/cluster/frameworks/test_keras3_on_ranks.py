"""Keras 3 with Horovod in cells: optimizers, models, layers, callbacks and hooks."""

import pytest

from cells import failure, finish, values

pytestmark = pytest.mark.cluster

IMPORTS = """
import copy, os, pickle, warnings, keras, keras.tree, numpy, tensorflow as tf
import horovod.tensorflow as hvd, horovod.keras, horovod.tensorflow.keras
hvd.init()
"""


@pytest.fixture(scope="module")
def ranks(frameworks):
    run = finish(frameworks, IMPORTS)
    assert run.state == "done", failure(run)
    return frameworks


def test_the_variables_of_an_optimizer_are_a_list_that_may_be_called(ranks, tmp_path):
    """Horovod's examples broadcast `opt.variables()` of an optimizer that is not wrapped."""
    source = f"""
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1 * (rank + 1), momentum=0.5)
        optimizer.build(model.trainable_variables)
        @tf.function
        def give():
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        give()
        given = round(float(optimizer.learning_rate), 3)
        model.compile(optimizer, "mse")
        model.fit(numpy.ones((4, 2)), numpy.ones((4, 1)), verbose=0)
        path = "{tmp_path}/" + str(rank)
        model.save(path + ".keras")
        loaded = keras.models.load_model(path + ".keras").optimizer
        module = tf.Module()
        module.kept = optimizer.variables
        saved = tf.train.Checkpoint(module=module).write(path)
        scaled = keras.optimizers.LossScaleOptimizer(optimizer)
        distributed = hvd.DistributedOptimizer(keras.optimizers.Adam())
        found = optimizer.variables
        [
            given,
            [float(numpy.sum(new - old)) for new, old in zip(loaded.variables(), found)],
            isinstance(found, list),
            [type(each) is list for each in (
                found[:], found + [], copy.copy(found), copy.deepcopy(found),
                pickle.loads(pickle.dumps(found)),
            )],
            len([name for name, _ in tf.train.list_variables(saved) if "kept" in name]),
            len(keras.tree.flatten(found)),
            len(scaled.variables()), len(distributed.variables()),
        ]
    """
    assert values(ranks, source) == [[0.1, [0.0] * 4, True, [True] * 5, 4, 4, 6, 2]] * 2


def test_the_learning_rate_is_also_available_as_lr(ranks):
    """Horovod's elastic examples set `optimizer.lr` after a reset."""
    source = """
        rates = []
        plain = keras.optimizers.SGD(1.0)
        for each in (plain, keras.optimizers.LossScaleOptimizer(plain),
                     hvd.DistributedOptimizer(plain)):
            each.lr.assign(4.0)
            rates.append(float(each.learning_rate))
            tf.keras.backend.set_value(each.lr, 0.5)
            rates.append(float(each.learning_rate))
            each.lr = 0.25
            rates.append(float(each.learning_rate))
        rates
    """
    assert values(ranks, source) == [[4.0, 0.5, 0.25] * 3] * 2


def test_keras_does_not_choose_xla_which_cannot_run_a_collective(ranks):
    source = """
        class Mine(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = keras.ops.mean((self(x) - y) ** 2)
                tape = hvd.DistributedGradientTape(tape)
                found = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(found, self.trainable_variables))
                return {"loss": loss}
        def model(**options):
            made = Mine([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
            made.compile("sgd", "mse", **options)
            return made
        listed = tf.config.list_physical_devices
        tf.config.list_physical_devices = lambda *args: [
            tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        ]
        try:
            chosen = keras.Sequential([keras.layers.Dense(1)]).jit_compile
            mine, asked, refused = model(), model(jit_compile=True), model(jit_compile=False)
            normal = keras.Sequential([hvd.SyncBatchNormalization()]).jit_compile
            mine.fit(numpy.ones((4, 2)) * (rank + 1), numpy.ones((4, 1)), verbose=0)
        finally:
            tf.config.list_physical_devices = listed
        [chosen, mine.jit_compile, asked.jit_compile, refused.jit_compile, normal,
         mine.get_weights()[0].tolist()]
    """
    first, second = values(ranks, source)
    assert first[:5] == [True, False, True, False, False]
    assert first == second


def test_each_fit_starts_gradient_accumulation_from_zero(ranks):
    """A fit that fails between two passes must not change at which batches its rank averages."""
    source = """
        def made(passes):
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model = keras.Sequential([keras.Input((1,)), layer])
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), backward_passes_per_step=passes
            )
            model.compile(optimizer, loss=lambda y, p: p)
            return model
        class Fail(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                raise ValueError("mine")
        def fit(model, number, batches, *callbacks):
            x = numpy.full((batches, 1), float(number))
            model.fit(x, x, batch_size=1, verbose=0, callbacks=list(callbacks))
            return model.get_weights()[0].item()
        model = made(2)
        if rank == 1:
            try:
                fit(model, 100, 2, Fail())
            except ValueError:
                pass
        found = [fit(model, rank + 1, 3)]
    """
    assert finish(ranks, source, seconds=60).state == "done"
    # Of three batches, the first two make a step; the third must not count in the next fit.
    again = "found + [fit(model, rank + 1, 2)]"
    assert values(ranks, again) == [[-3.0, -6.0]] * 2
    few = """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            weight = fit(made(2), 1, 1)
        [weight, [str(each.message) for each in caught if "backward_passes" in str(each.message)]]
    """
    for weight, said in values(ranks, few):
        assert weight == 0
        assert ["not changed the model: it had 1 batches" in each for each in said] == [True]
    loop = """
        model = made(2)
        [weight], optimizer = model.trainable_variables, model.optimizer
        if rank == 1:
            optimizer.apply([tf.constant([[100.0]])], [weight])
        optimizer.reset_passes()
        for _ in range(2):
            optimizer.apply([tf.constant([[rank + 1.0]])], [weight])
        float(weight[0, 0])
    """
    assert values(ranks, loop) == [-3.0] * 2


def test_layers_with_collectives_match_although_a_rank_created_more_layers(ranks):
    """Keras numbers models and layers, and the names of their operations contain theirs."""
    source = """
        class Mean(keras.layers.Layer):
            def call(self, x):
                return hvd.allreduce(x) + hvd.allreduce(x, name="mine") + hvd.broadcast(x, 0)
        def model():
            made = keras.Sequential([
                keras.Input((2,)), Mean(), hvd.SyncBatchNormalization(name=None), Mean(),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ])
            made.compile("sgd", "mse")
            made.optimizer.build(made.trainable_variables)
            return made
        if rank == 0:
            model()
            hvd.SyncBatchNormalization(name="other")
        trained = model()
        x = numpy.arange(8.0).reshape(4, 2) * (rank + 1)
        trained.fit(x, numpy.ones((4, 1)), shuffle=False, verbose=0)
        hvd.broadcast_variables(trained.optimizer.variables, root_rank=0, inplace=True)
    """
    run = finish(ranks, source, seconds=60)
    assert run.state == "done", failure(run)
    (name, scale, kernel), (other, smaller, same) = values(
        ranks,
        """
        weights = trained.get_weights()
        [trained.name, 1 - float(weights[0][0]), weights[4].tolist()]
        """,
    )
    assert name != other and kernel == same
    # A third of the gradient flows through the broadcast, and only the root receives it.
    assert (scale, smaller) == (pytest.approx(0.36, abs=1e-4), pytest.approx(0.24, abs=1e-4))


def test_best_model_checkpoint_saves_to_the_given_path(ranks, tmp_path):
    source = f"""
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x, said = numpy.ones((4, 2)), []
        for i, module in enumerate((horovod.keras, horovod.tensorflow.keras)):
            kind, path = module.callbacks.BestModelCheckpoint, f"{tmp_path}/{{rank}}{{i}}.keras"
            model.fit(x, x, verbose=0, callbacks=[kind(monitor="loss", filepath=path)])
            said.append(keras.models.load_model(path).count_params())
            later = kind(monitor="loss")
            try:
                model.fit(x, x, verbose=0, callbacks=[later])
            except ValueError as error:
                said.append(str(error))
            later.filepath = path = path.replace(".keras", "-later.keras")
            model.fit(x, x, verbose=0, callbacks=[later])
            said.append(os.path.exists(path))
        said
    """
    for saved, refused, later in (
        shown[i : i + 3] for shown in values(ranks, source) for i in (0, 3)
    ):
        assert (saved, later) == (3, True)
        assert "give it filepath=" in refused


def test_a_session_hook_broadcasts_global_variables(ranks):
    source = """
        with tf.Graph().as_default():
            tf.compat.v1.train.create_global_step()
            weight = tf.compat.v1.get_variable("weight", initializer=float(rank + 5))
            hook = hvd.BroadcastGlobalVariablesHook(0)
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                found = float(session.run(weight))
        try:
            hook.begin()
        except RuntimeError as error:
            said = str(error)
        [found, said]
    """
    for found, said in values(ranks, source):
        assert found == 5.0
        assert "use `hvd.broadcast_variables(" in said
