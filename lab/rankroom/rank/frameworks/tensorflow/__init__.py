"""TensorFlow and Keras on a rank: tf.distribute's environment, and their work recorded."""
