"""Record epochs and batches of Keras and TensorFlow training, and waits for a tf.data.Dataset.

The classes themselves are wrapped, so the user's list of callbacks stays as it is. What `fit` reads
from a tf.data.Dataset is not seen, as it is read inside the compiled step rather than in Python.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rankroom.rank.frameworks.tensorflow import keras_metrics
from rankroom.rank.import_hooks import when_imported
from rankroom.reporting.spans import recorder

# Pairs of Keras' callback methods, called at the beginning and at the end, and the span's name.
_CALLBACK_PAIRS = (
    ("on_epoch_begin", "on_epoch_end", "epoch {}"),
    ("on_train_batch_begin", "on_train_batch_end", "batch"),
    ("on_test_begin", "on_test_end", "evaluate"),
    ("on_test_batch_begin", "on_test_batch_end", "test batch"),
    ("on_predict_begin", "on_predict_end", "predict"),
    ("on_predict_batch_begin", "on_predict_batch_end", "predict batch"),
)


class _Thread(threading.local):
    loading = False  # iterators may be nested: only the outermost is timed


_thread = _Thread()
_begun: dict[str, int] = {}  # start of each unfinished span, in ns; stays if it raises


def install() -> None:
    """Prepare for the user's import of Keras or TensorFlow; nothing is imported now."""
    when_imported("keras.src.callbacks.callback_list", _watch_training)
    when_imported("tf_keras.src.callbacks", _watch_training)  # Keras 2
    when_imported("keras.src.trainers.epoch_iterator", lambda module: _watch(module.EpochIterator))
    when_imported(
        "tensorflow.python.data.ops.iterator_ops", lambda module: _watch(module.OwnedIterator)
    )
    when_imported(
        "tensorflow.python.distribute.input_lib",
        lambda module: _watch(module.DistributedIteratorBase),
    )


def _watch_training(module: Any) -> None:
    for begin, end, name in _CALLBACK_PAIRS:
        kind = module.CallbackList
        if hasattr(kind, begin) and hasattr(kind, end):
            setattr(kind, begin, _before(getattr(kind, begin), name))
            setattr(kind, end, _after(getattr(kind, end), name))
    keras_metrics.watch_training(module)


def _before(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.on:
            _begun[name] = time.time_ns()
        return original(self, *args, **kwargs)

    return told


def _after(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            begun = _begun.pop(name, None)
            if begun is not None:
                index = args[0] if args else kwargs.get("epoch")
                # Users, and Keras' own output, count epochs from 1.
                words = name.format(index + 1) if isinstance(index, int) else name
                number = recorder.number(("step", words), lambda: {"name": words})
                recorder.add("step", number, begun // 1000, (time.time_ns() - begun) // 1000)

    return told


def _watch(kind: Any) -> None:
    """Record each `next()` of an iterator class as a span."""
    original = getattr(kind, "__next__", None)
    if original is None:  # before Keras 3.7, the class is not an iterator
        return
    ours = not kind.__module__.startswith("tensorflow")
    name = "Keras data" if ours else "tf.data"
    context: Any = None if ours else sys.modules["tensorflow.python.eager.context"]

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - a method of their classes
        if not recorder.on or _thread.loading or not (ours or context.executing_eagerly()):
            return original(self)
        if threading.current_thread() is not threading.main_thread():
            return original(self)  # reading ahead does not block the training
        _thread.loading = True
        begin = time.time_ns()
        try:
            return original(self)
        finally:
            dur = (time.time_ns() - begin) // 1000
            _thread.loading = False
            recorder.add(
                "data", recorder.number(("data", name), lambda: {"name": name}), begin // 1000, dur
            )

    # With this, AutoGraph calls the function without converting it.
    __next__.autograph_info__ = {}  # type: ignore[attr-defined]
    kind.__next__ = __next__
