"""Horovod's Keras callbacks for Keras 3 on the TensorFlow backend. Added by Rankroom.

The classes replace those of `horovod._keras.callbacks`: same names, same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod._keras import keras3_classes
from horovod.tensorflow.util import plain_variable

Logs = dict[str, Any] | None


class BroadcastGlobalVariablesCallbackImpl:
    """Gives every rank the root's model and optimizer after the first batch."""

    model: Any

    def __init__(self, backend: Any, root_rank: int, device: str = "", *args: Any) -> None:
        super().__init__(*args)
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_vars: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """Do not broadcast `var`: each rank keeps its own value."""
        self._local_vars.add(plain_variable(var).ref())

    def on_train_begin(self, logs: Logs = None) -> None:
        # In a notebook the callback may be from an earlier cell than the model.
        self.broadcast_done = False

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        # After the first batch: only then does the optimizer have all its variables.
        if self.broadcast_done:
            return
        # `weights` and not `variables`: ranks keep random states of their own, else dropout would
        # drop the same units on all of them.
        variables = [*self.model.weights, *self.model.optimizer.variables]
        plain = [plain_variable(variable) for variable in variables]
        with tf.device(self.device):
            hvd.broadcast_variables(
                [variable for variable in plain if variable.ref() not in self._local_vars],
                root_rank=self.root_rank,
            )
        self.broadcast_done = True


class MetricAverageCallbackImpl:
    """Averages the numbers in an epoch's logs over the ranks, for the callbacks after it."""

    def __init__(self, backend: Any, device: str = "", *args: Any) -> None:
        super().__init__(*args)
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        # All in one operation: ranks that report different metrics get an error about its shape.
        names = sorted(name for name, value in (logs or {}).items() if _is_number(value))
        if not logs or not names:
            return
        values = tf.constant([float(logs[name]) for name in names], dtype=tf.float64)
        averages = hvd.allreduce(values, device_dense=self.device, name="MetricAverageCallback")
        logs.update(zip(names, (float(average) for average in averages.numpy()), strict=True))


class LearningRateScheduleCallbackImpl:
    """Sets the learning rate to `initial_lr * multiplier(epoch)`."""

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        *args: Any,
    ) -> None:
        super().__init__(*args)
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else _decay(multiplier, start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "the number of steps per epoch is not known: give "
                    f"{type(self).__name__}(steps_per_epoch=...)"
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Logs = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _adjust(self, epoch: float) -> None:
        old = self._rate()
        new = self.initial_lr * self.multiplier(epoch)
        try:
            self.model.optimizer.learning_rate = new
        except TypeError:
            raise ValueError(
                f"{type(self).__name__} sets the learning rate, but the optimizer has a schedule "
                "of its own: give the optimizer a number"
            ) from None
        if self.momentum_correction and old:
            _correct_momentum(self.model.optimizer, new / old)

    def _rate(self) -> float:
        return float(np.asarray(self.model.optimizer.learning_rate))


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch."""

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *args: Any,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            done = min(1.0, (epoch + 1.0 / self.steps_per_epoch) / warmup_epochs)
            return float((1 + done * (hvd.size() - 1)) / hvd.size())

        super().__init__(
            backend,
            initial_lr,
            multiplier,
            0,
            warmup_epochs,
            False,
            momentum_correction,
            steps_per_epoch,
            *args,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch == epoch + 1 and self.verbose > 0 and hvd.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}."
            )


def _decay(multiplier: float, start_epoch: int) -> Callable[[float], float]:
    return lambda epoch: float(multiplier ** (epoch - start_epoch))


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number)


def _correct_momentum(optimizer: Any, ratio: float) -> None:
    """Scale the velocities, which contain the learning rate, by the change of that rate.

    https://arxiv.org/abs/1706.02677, equation 10. Keras 3 compiles the momentum into the step, so
    the correction is applied to what it is multiplied with: once per change, with the same product.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if ratio == 1 or not getattr(optimizer, "momentum", None):
        return
    for name in ("momentums", "_momentums"):
        for velocity in getattr(optimizer, name, ()):
            velocity.assign(velocity * ratio)


# In case the Keras imported here is not TensorFlow's.
keras3_classes.adapt(keras)
