"""TensorFlow and Keras on a rank: tf.distribute's environment, and recording of their work."""
