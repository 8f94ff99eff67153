"""A TensorFlow training loop: the same code runs as a cell and under horovodrun.

KIND is one of eager, function, keras; a layer has two tensors.
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

KIND = "eager"
LAYERS = 2
WIDTH = 128

hvd.init()
rank, size = hvd.rank(), hvd.size()
tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
tf.random.set_seed(0)
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32"), labels.astype("int64")
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(WIDTH, "relu") for layer in range(LAYERS - 1)]
    + [tf.keras.layers.Dense(10)]
)
model.build((None, 64))
hvd.broadcast_variables(model.variables, root_rank=0)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
batch = 32


def step(chosen, wanted):
    with tf.GradientTape() as tape:
        loss = loss_of(wanted, model(chosen, training=True))
    tape = hvd.DistributedGradientTape(tape)
    for each, gradient in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
    ):
        each.assign_sub(0.01 * gradient)


if KIND == "function":
    step = tf.function(step)
if KIND == "keras":
    import horovod.keras

    model.compile(horovod.keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss_of)


def train(steps):
    if KIND == "keras":
        count = steps * batch
        chosen = np.arange(count) % len(images)
        model.fit(images[chosen], labels[chosen], batch_size=batch, verbose=0)
        return
    for number in range(steps):
        at = (number * size + rank) * batch % max(1, len(images) - batch)
        chosen = np.arange(at, at + batch) % len(images)
        step(images[chosen], labels[chosen])


def together():
    hvd.allreduce(tf.zeros(1), name="together")


def threads():
    return tf.config.threading.get_intra_op_parallelism_threads()


def is_alike():
    """Return whether all ranks have the same weights."""
    mine = sum(float(tf.reduce_sum(tf.cast(each, tf.float64))) for each in model.variables)
    return len({round(each, 6) for each in hvd.allgather_object(mine)}) == 1


def loss():
    return float(loss_of(labels, model(images)))
