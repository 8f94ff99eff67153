"""Keras' epochs and batches, and loops over a tf.data.Dataset, as spans on real ranks."""

import pytest

from cells import failure, finish, log
from spanned import names, spans

pytestmark = pytest.mark.cluster


def done(cluster, source):
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    return run


def test_epochs_and_batches_of_keras_fit_are_recorded_as_steps(frameworks):
    run = done(
        frameworks,
        """
        import time, numpy, keras, tensorflow as tf
        class Mine(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                time.sleep(0.05)
        x, y = numpy.ones((32, 4)), numpy.ones((32, 1))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        mine = [Mine()]
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=mine, validation_data=(x, y))
        assert [type(each).__name__ for each in mine] == ["Mine"]
        assert model.history.epoch == [0, 1, 2]
        model.predict(x, batch_size=16, verbose=0)
        """,
    )
    for rank in (0, 1):
        found = names(run, rank, "step")
        epochs = [each for each in spans(run, rank, "step") if each.name.startswith("epoch")]
        assert [each.name for each in epochs] == ["epoch 1", "epoch 2", "epoch 3"]
        assert all(each.end - each.start > 50_000 for each in epochs)
        assert found.count("batch") == 12
        assert found.count("evaluate") == 3 and found.count("test batch") == 12
        assert found.count("predict") == 1 and found.count("predict batch") == 2
        second = [
            each
            for each in spans(run, rank, "step")
            if each.name == "batch" and epochs[1].start <= each.start and each.end <= epochs[1].end
        ]
        assert len(second) == 4


def test_steps_are_recorded_correctly_after_a_batch_that_raised(frameworks):
    run = done(
        frameworks,
        """
        class Stop(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                raise ValueError("mine")
        try:
            model.fit(x, y, verbose=0, callbacks=[Stop()])
        except ValueError:
            pass
        print(time.time_ns() // 1000)
        model.fit(x, y, batch_size=16, verbose=0)
        """,
    )
    for rank in (0, 1):
        found = [each for each in spans(run, rank, "step") if each.name == "batch"]
        # Both batches began after the one that raised.
        again = int(log(run, rank)) - run.info.start
        assert len(found) == 2 and all(each.start >= again for each in found)


def test_waits_for_a_tf_dataset_are_recorded(frameworks):
    run = done(
        frameworks,
        """
        def slow():
            for step in range(3):
                time.sleep(0.03)
                yield float(step)
        data = tf.data.Dataset.from_generator(
            slow, output_signature=tf.TensorSpec((), tf.float32)
        )
        # Else TensorFlow fetches ahead, and a rank that is late itself has no wait.
        options = tf.data.Options()
        options.autotune.enabled = False
        data = data.with_options(options)
        total = sum(float(each) for each in data)
        assert total == 3
        iterator = iter(data)
        assert float(next(iterator)) == 0
        @tf.function
        def inside(numbers):
            total = 0.0
            for each in numbers:
                total += each
            return total
        assert float(inside(tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32)))) == 6
        """,
    )
    for rank in (0, 1):
        found = spans(run, rank, "data")
        assert [each.name for each in found] == ["tf.data"] * 5
        assert all(each.end - each.start > 25_000 for each in found[:3])
        assert "AutoGraph" not in log(run, rank, "stderr")
