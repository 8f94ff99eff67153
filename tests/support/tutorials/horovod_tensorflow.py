"""Horovod with TensorFlow, as its tutorials have it: a custom loop in a tf.function."""

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
dataset = dataset.shard(hvd.size(), hvd.rank()).shuffle(1000).repeat().batch(32)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01 * hvd.size())


@tf.function
def training_step(data, target, first_batch):
    with tf.GradientTape() as tape:
        loss = loss_of(target, model(data, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    # After the first step, as there are no variables before it.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


losses = []
for batch, (data, target) in enumerate(dataset.take(40)):
    loss = training_step(data, target, batch == 0)
    losses.append(float(loss))
    if batch % 10 == 0 and hvd.rank() == 0:
        print(f"step {batch} loss {loss:.4f}")

checksum = sum(float(tf.reduce_sum(tf.abs(variable))) for variable in model.trainable_variables)
{"first": losses[0], "last": losses[-1], "checksum": checksum}
