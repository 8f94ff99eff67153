"""Horovod with Keras, as its tutorials have it: fit with a wrapped optimizer and callbacks."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
dataset = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(1000).batch(32)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.005 * hvd.size()))
model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.005 * hvd.size(), warmup_epochs=2),
]
history = model.fit(
    dataset,
    steps_per_epoch=20,
    epochs=4,
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)
checksum = sum(float(tf.reduce_sum(tf.abs(weight))) for weight in model.trainable_weights)
{"accuracy": history.history["accuracy"][-1], "checksum": checksum}
