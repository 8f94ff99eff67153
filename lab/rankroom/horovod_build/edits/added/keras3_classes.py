"""What Horovod changes in Keras 3's own classes, on the TensorFlow backend. Added by Rankroom.

The changes are made as soon as `horovod.tensorflow` is imported: Python looks up `model.compile`
before it evaluates the arguments, which is when an optimizer is made distributed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from horovod._keras import keras3
from horovod.tensorflow.util import plain_variable

_adapted: set[Any] = set()


class CallableList(list[Any], tf.__internal__.tracking.Trackable):
    """Variables for both spellings: Keras 2's `optimizer.variables()`, and `optimizer.variables`.

    TensorFlow saves the items of a list in an attribute only if the list's type is exactly `list`,
    so this one reports its items itself. Its copies, also when unpickled, are plain lists.
    """

    def __call__(self) -> CallableList:
        return self

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {str(i): variable for i, variable in enumerate(self)}


def adapt(keras: Any) -> None:
    """Make optimizers and models of this Keras do what Horovod's users expect of them."""
    if keras.Model in _adapted or keras.backend.backend() != "tensorflow":
        return
    _adapted.add(keras.Model)
    with contextlib.suppress(ImportError):  # Keras before 3.3 does not need it
        import optree

        # keras.tree would treat the list as a single leaf.
        optree.register_pytree_node(
            CallableList, lambda each: (each, None), lambda _, of: list(of), namespace="keras"
        )
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _replace(kind, "variables", _callable)
    keras.optimizers.Optimizer.lr = property(_rate, _set_rate)
    _replace(keras.Model, "compile", _without_xla)
    _replace(keras.Model, "fit", _in_step)


def _replace(kind: Any, name: str, made: Callable[[Any], Any]) -> None:
    # On the class that defines it: a model whose own class has `compile` is not compiled on
    # loading.
    owner = next(cls for cls in kind.__mro__ if name in vars(cls))
    setattr(owner, name, made(vars(owner)[name]))


def _callable(variables: property) -> property:
    return property(lambda self: CallableList(variables.__get__(self)))


def _rate(optimizer: Any) -> Any:
    """Return the learning rate as a tf.Variable, for `optimizer.lr` as in Keras 2: Horovod's
    elastic examples set it with `backend.set_value`, which takes nothing else."""
    return plain_variable(optimizer.learning_rate)


def _set_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate


def _without_xla(plain: Callable[..., None]) -> Callable[..., None]:
    """Compile models without XLA, which cannot run a collective, unless it is requested; and accept
    an argument of Keras 2 that Horovod's examples pass."""
    before_it = list(inspect.signature(plain).parameters).index("jit_compile") - 1

    @functools.wraps(plain)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("experimental_run_tf_function", None)
        # On a GPU, Keras chooses XLA for models that do not say they cannot be compiled.
        if len(args) <= before_it and kwargs.get("jit_compile", "auto") == "auto":
            kwargs["jit_compile"] = False
        plain(self, *args, **kwargs)
        if keras3.settle(self):
            warnings.warn(
                "XLA cannot compile Horovod's operations: jit_compile is off", stacklevel=2
            )

    return compile


def _in_step(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Begin a new sum of gradients in each `fit`: one that failed or was interrupted leaves a
    partial sum on some ranks, which would average at other batches than the others."""

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer: Any = getattr(self, "optimizer", None)
        passes = optimizer._hvd_reduction.passes if keras3.is_distributed(optimizer) else 1
        if passes == 1:
            return plain(self, *args, **kwargs)
        optimizer.reset_passes()
        before = int(optimizer.iterations)
        history = plain(self, *args, **kwargs)
        batches = int(optimizer.iterations) - before
        if 0 < batches < passes:
            warnings.warn(
                f"this fit has not changed the model: it had {batches} batches, fewer than "
                f"backward_passes_per_step={passes}, and the next one begins a new sum",
                stacklevel=2,
            )
        return history

    return fit
