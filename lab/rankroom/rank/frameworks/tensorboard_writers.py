"""Scalars that user code writes for TensorBoard, as metrics under the same names.

The files that the code writes are as without us.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.reporting import metrics, spans

_EAGER = "tensorflow.python.eager.context"


def install() -> None:
    """Prepare for the user's import of a writer; nothing is imported now."""
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        when_imported(name, _watch_writer)
    when_imported("tensorflow.python.summary.tb_summary", _watch_summaries)


def _watch_writer(module: Any) -> None:
    """PyTorch's SummaryWriter, and the one that it was made after."""
    kind = module.SummaryWriter
    kind.add_scalar = _after_one(kind.add_scalar)
    kind.add_scalars = _after_many(kind.add_scalars)


def _after_one(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_scalar(
        self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(self, tag, scalar_value, global_step, *args, **kwargs)
        if spans.recorder.on:
            metrics.points.add({str(tag): scalar_value}, global_step)
        return result

    return add_scalar


def _after_many(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_scalars(
        self: Any,
        main_tag: Any,
        tag_scalar_dict: Any,
        global_step: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)
        if spans.recorder.on:
            values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
            metrics.points.add(values, global_step)
        return result

    return add_scalars


def _watch_summaries(module: Any) -> None:
    """TensorFlow's `tf.summary.scalar`, where it writes: with a writer, and outside of a graph."""
    original = module.scalar

    @functools.wraps(original)
    def scalar(
        name: Any, data: Any, step: Any = None, description: Any = None, **kwargs: Any
    ) -> Any:
        written = original(name, data, step=step, description=description, **kwargs)
        if spans.recorder.on and sys.modules[_EAGER].executing_eagerly() and bool(written):
            if step is None:
                step = sys.modules["tensorflow"].summary.experimental.get_step()
            metrics.points.add({str(name): data}, step)
        return written

    # AutoGraph calls it as it is.
    scalar.autograph_info__ = {}  # type: ignore[attr-defined]
    module.scalar = scalar
