"""Batch normalisation over the batches of all ranks, for Keras 3. Put there by Rankroom."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import Sum, _allreduce, size


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """`BatchNormalization` whose mean and variance are those of the ranks' batches together."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        kwargs["name"] = kwargs.get("name") or "sync_batch_normalization"
        super().__init__(**kwargs)
        self.supports_jit = False  # XLA cannot run a collective

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        if size() == 1:
            return mean, variance
        # Var[X] = E[X^2] - E[X]^2, and expectations can be averaged over the ranks.
        moments = tf.stack([mean, variance + tf.square(mean)])
        mean, mean_square = tf.unstack(_allreduce(moments, op=Sum) / size())
        return mean, mean_square - tf.square(mean)
