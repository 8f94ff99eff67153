"""Horovod's Keras optimizer and model loading for Keras 3 on the TensorFlow backend.

Added to Horovod by Rankroom. All updates of Keras 3's optimizers go through `apply(gradients,
variables)`: averaging there comes before clipping and loss scaling, so that every rank makes the
same decision about the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod._keras.keras3_reduction import GradientReduction


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: Any,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: Any = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a copy of `optimizer`, with its state, whose gradients are averaged over the ranks."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Horovod needs Keras on TensorFlow, not on {keras.backend.backend()}: "
            "set KERAS_BACKEND=tensorflow before Keras is imported"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"DistributedOptimizer needs a Keras optimizer, not {optimizer!r}")
    base: Any = type(optimizer)
    if is_distributed(optimizer):
        base = base.__mro__[1]
    module = keras.optimizers.serialize(optimizer)["module"] or base.__module__
    wrapped = _copy(optimizer, _distributed_class(base, module))
    wrapped._hvd_reduction = GradientReduction(
        hvd._make_allreduce_grads_fn(
            name or f"Distributed{base.__name__}",
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups,
            process_set=process_set,
        ),
        backward_passes_per_step,
        average_aggregated_gradients,
        sparse_as_dense,
        process_set,
        scale_local_gradients,
    )
    return wrapped


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[Callable[[], Any]], Callable[[], Any]],
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """Return the saved model, its optimizer made distributed with the state it was saved with."""
    objects: dict[str, Any] = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    plain = getattr(model, "optimizer", None)
    if plain is not None:
        model.optimizer = wrap_optimizer(lambda: plain)()
        model.train_function = None
        settle(model)
    return model


def is_distributed(optimizer: Any) -> bool:
    return getattr(optimizer, "_hvd_reduction", None) is not None


@functools.cache
def _distributed_class(base: Any, module: str) -> Any:
    # Keeping the optimizer's name, and the module it is saved under, lets a model that was
    # trained with Horovod be loaded without it.
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = list(trainable_variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        self._hvd_reduction.apply(self, functools.partial(base.apply, self), list(grads), variables)

    def register_local_var(self: Any, variable: Any) -> None:
        """Keep the gradients of `variable` on this rank."""
        self._hvd_reduction.register_local(variable)

    def reset_passes(self: Any) -> None:
        """Begin a new sum of gradients: for the start of your own training loop. `fit` does so.

        With backward_passes_per_step > 1, a loop that failed or was interrupted leaves a partial
        sum, and its rank would average at other steps than the others.
        """
        self._hvd_reduction.reset()

    members = {
        "__module__": module,
        "__doc__": base.__doc__,
        "_hvd_reduction": None,
        "apply": apply,
        "register_local_var": register_local_var,
        "reset_passes": reset_passes,
    }
    return type(base.__name__, (base,), members)


def _copy(optimizer: Any, cls: Any) -> Any:
    config = optimizer.get_config()
    if not isinstance(config.get("learning_rate", 0.0), (int, float)):
        config["learning_rate"] = optimizer._learning_rate  # a schedule or a function
    copy = cls.from_config(config)
    _exclude_as(optimizer, copy)
    if optimizer.built and optimizer._trainable_variables:
        copy.build(optimizer._trainable_variables)
    # Keras loads an .h5 file's optimizer as built for no variables at all; ours builds later.
    for new, old in zip(copy.variables, optimizer.variables, strict=True):
        new.assign(old)
    return copy


def _exclude_as(optimizer: Any, copy: Any) -> None:
    """Exclude the same variables from weight decay, which is not in an optimizer's config."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(copy, name, getattr(optimizer, name))
    if (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        _exclude_as(inner, copy.inner_optimizer)


def settle(model: Any) -> bool:
    """Make a compiled model fit for collectives; return whether XLA had to be switched off."""
    optimizer = model.optimizer
    inner: Any = getattr(optimizer, "inner_optimizer", None)
    if is_distributed(inner) and not is_distributed(optimizer):
        # Keras has put its loss scaling around ours, and would skip a step on one rank whose
        # gradients overflow while the others wait. Reduced first, they overflow on all ranks.
        plain: Any = type(optimizer)
        optimizer.__class__ = _distributed_class(plain, plain.__module__)
        optimizer._hvd_reduction = inner._hvd_reduction
    if is_distributed(optimizer) and model.jit_compile:
        model.jit_compile = False
        return True
    return False
