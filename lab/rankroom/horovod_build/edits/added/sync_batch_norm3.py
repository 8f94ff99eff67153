"""Batch normalization over the batches of all ranks, for Keras 3. Added by Rankroom."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import Sum, _allreduce, size, size_op


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """`BatchNormalization` whose mean and variance are those of all ranks' batches together."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        kwargs["name"] = kwargs.get("name") or "sync_batch_normalization"
        super().__init__(**kwargs)
        self.supports_jit = False  # XLA cannot run a collective

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        # What is traced in a world of one rank may run in a larger one, and vice versa.
        if max(size(), int(os.environ.get("RANKROOM_SIZE", 1))) == 1:
            return mean, variance
        # Var[X] = E[X^2] - E[X]^2, and expectations can be averaged over the ranks.
        moments = tf.stack([mean, variance + tf.square(mean)])
        sums = _allreduce(moments, op=Sum)
        mean, mean_square = tf.unstack(sums / tf.cast(size_op(), sums.dtype))
        return mean, mean_square - tf.square(mean)
