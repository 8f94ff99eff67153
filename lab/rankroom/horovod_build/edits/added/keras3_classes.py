"""What Horovod changes in Keras 3's own classes, on the TensorFlow backend. Put there by Rankroom.

It is done as soon as `horovod.tensorflow` is imported: `model.compile` is looked up before its
arguments are evaluated, which is when an optimizer is made distributed.
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
    """`optimizer.variables()` was how Keras 2 spelt `optimizer.variables`; both work.

    TensorFlow saves what is in a list that is somebody's attribute if its type is `list` itself:
    this one tells what it holds. Its copies, and what is unpickled, are plain lists.
    """

    def __call__(self) -> CallableList:
        return self

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {str(i): variable for i, variable in enumerate(self)}


def adapt(keras: Any) -> None:
    """Let optimizers and models of this Keras do what Horovod's users expect of them."""
    if keras.Model in _adapted or keras.backend.backend() != "tensorflow":
        return
    _adapted.add(keras.Model)
    with contextlib.suppress(ImportError):  # Keras before 3.3 does without
        import optree

        # keras.tree would take it for a single leaf.
        optree.register_pytree_node(
            CallableList, lambda each: (each, None), lambda _, of: list(of), namespace="keras"
        )
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _replace(kind, "variables", _callable)
    keras.optimizers.Optimizer.lr = property(_rate, _set_rate)
    _replace(keras.Model, "compile", _without_xla)
    _replace(keras.Model, "fit", _in_step)


def _replace(kind: Any, name: str, made: Callable[[Any], Any]) -> None:
    # Where Keras defines it: a model whose own class has `compile` is not compiled on loading.
    owner = next(cls for cls in kind.__mro__ if name in vars(cls))
    setattr(owner, name, made(vars(owner)[name]))


def _callable(variables: property) -> property:
    return property(lambda self: CallableList(variables.__get__(self)))


def _rate(optimizer: Any) -> Any:
    """`optimizer.lr` of Keras 2, which Horovod's elastic examples assign to by `backend.set_value`:
    that takes a tf.Variable only."""
    return plain_variable(optimizer.learning_rate)


def _set_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate


def _without_xla(plain: Callable[..., None]) -> Callable[..., None]:
    """Compile models without XLA, which cannot run a collective, unless it is asked for by name;
    and with an argument of Keras 2 that Horovod's examples give."""
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
    """Begin a new sum of gradients in each `fit`: one that failed or was interrupted has left part
    of a sum on some ranks, which would average at other batches than the others."""

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
