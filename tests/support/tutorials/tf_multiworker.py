"""tf.distribute's MultiWorkerMirroredStrategy, as its tutorials have it: a custom loop."""

import json
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
global_batch = 8 * len(workers)


def dataset_of(context):
    x = tf.random.stateless_uniform([256, 1], seed=[1, 2], minval=-1.0)
    batch = context.get_per_replica_batch_size(global_batch)
    dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x - 1)).repeat()
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch)


with strategy.scope():
    weight = tf.Variable(0.0)
    bias = tf.Variable(0.0)


@tf.function
def train_step(iterator):
    def step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            error = tf.square(weight * x + bias - y)
            loss = tf.nn.compute_average_loss(error, global_batch_size=global_batch)
        gradients = tape.gradient(loss, [weight, bias])
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        weight.assign_sub(0.2 * gradients[0])
        bias.assign_sub(0.2 * gradients[1])
        return loss

    losses = strategy.run(step, args=(next(iterator),))
    return strategy.reduce("sum", losses, axis=None)


iterator = iter(strategy.distribute_datasets_from_function(dataset_of))
for step in range(60):
    loss = train_step(iterator)
    if step % 20 == 0:
        print(f"step {step} loss {float(loss):.4f}")

[strategy.num_replicas_in_sync, round(float(weight.numpy()), 1), round(float(bias.numpy()), 1)]
