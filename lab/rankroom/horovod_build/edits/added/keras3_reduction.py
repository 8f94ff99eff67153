"""How the gradients of a Keras 3 optimizer are reduced over the ranks. Added by Rankroom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import size_op
from horovod.tensorflow.util import plain_variable


class GradientReduction:
    """Reduces one rank's gradients with those of the others; each optimizer has its own."""

    def __init__(
        self,
        allreduce: Callable[[list[Any], list[Any]], list[Any]],
        passes: int,
        average_passes: bool,
        sparse_as_dense: bool,
        process_set: Any,
        scale_local: bool,
    ) -> None:
        if passes < 1:
            raise ValueError("backward_passes_per_step must be > 0")
        self._allreduce = allreduce
        self.passes = passes
        self._average_passes = average_passes
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._scale_local = scale_local
        self._local: set[Any] = set()
        self._sums: list[Any] = []
        self._count: Any = None
        self._applying = False

    def register_local(self, variable: Any) -> None:
        self._local.add(plain_variable(variable).ref())

    def reset(self) -> None:
        """Begin a new sum and discard a partial one."""
        if self._count is not None:
            for variable in (self._count, *self._sums):
                variable.assign(tf.zeros_like(variable))

    def apply(
        self,
        optimizer: Any,
        apply: Callable[[list[Any], list[Any]], None],
        gradients: list[Any],
        variables: list[Any],
    ) -> None:
        """Reduce the gradients, then let the optimizer `apply` them."""
        if self._applying:  # within a LossScaleOptimizer that has reduced them already
            apply(gradients, variables)
        elif self.passes == 1:
            self._apply_reduced(apply, self.reduce(gradients, variables), variables)
        else:
            self._accumulate(optimizer, apply, gradients, variables)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients averaged over the ranks; those of local variables stay local."""
        plain = [plain_variable(variable) for variable in variables]
        shared = [i for i, variable in enumerate(plain) if variable.ref() not in self._local]
        reduced = self._allreduce([gradients[i] for i in shared], [plain[i] for i in shared])
        result = [self._scaled_local(gradient) for gradient in gradients]
        for i, gradient in zip(shared, reduced, strict=True):
            result[i] = gradient
        return result

    def _scaled_local(self, gradient: Any) -> Any:
        if gradient is None or not self._scale_local:
            return gradient
        # Evaluated when a graph runs, which may be in a larger world than it was traced in.
        size = tf.cast(size_op(self._process_set.process_set_id), gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _apply_reduced(
        self,
        apply: Callable[[list[Any], list[Any]], None],
        gradients: list[Any],
        variables: list[Any],
    ) -> None:
        self._applying = True
        try:
            apply(gradients, variables)
        finally:
            self._applying = False

    def _accumulate(
        self,
        optimizer: Any,
        apply: Callable[[list[Any], list[Any]], None],
        gradients: list[Any],
        variables: list[Any],
    ) -> None:
        gradients = [self._dense(gradient) for gradient in gradients]
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False)
                self._sums = [
                    tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables
                ]
        for total, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                total.assign_add(tf.cast(gradient, total.dtype))
        self._count.assign_add(1)
        divisor = self.passes if self._average_passes else 1

        def step() -> Any:
            sums = [
                None if gradient is None else total.read_value() / divisor
                for total, gradient in zip(self._sums, gradients, strict=True)
            ]
            self._apply_reduced(apply, self.reduce(sums, variables), variables)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            return self._count.assign(0)

        def wait() -> Any:
            optimizer.iterations.assign_add(1)
            return self._count.read_value()

        tf.cond(tf.equal(self._count, self.passes), step, wait)

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._sparse_as_dense:
            raise ValueError(
                "sparse gradients need sparse_as_dense=True when backward_passes_per_step > 1"
            )
        return tf.convert_to_tensor(gradient)
