"""Report scalars that user code writes for TensorBoard as metrics of the same names.

TensorBoard shows a curve for each tag in each folder. Here, the first folder that uses a tag in a
run gets the tag as its metric's name; for any other folder, the end of its path is put in front, as
in `val/loss`. The files that the code writes are not changed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankroom.rank.import_hooks import when_imported
from rankroom.reporting import metrics, spans

_CONTEXT_MODULE = "tensorflow.python.eager.context"
_SUMMARY_MODULE = "tensorflow.python.ops.summary_ops_v2"


class _Names:
    """The metric names of the current run, and the folder that each one belongs to."""

    began = 0  # when the run began, in microseconds since the epoch

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def of(self, tag: Any, folder: Any) -> str:
        """Return the metric name for scalars with this tag that are written to this folder."""
        if self.began != spans.recorder.began:
            self.began, self.folders = spans.recorder.began, {}
        name, folder = str(tag), os.path.normpath(str(folder))
        before = list(Path(folder).parts)
        while self.folders.setdefault(name, folder) != folder and before:
            name = f"{before.pop()}/{name}"
        return name


_names = _Names()


def install() -> None:
    """Prepare for the user's import of a writer; nothing is imported now."""
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        when_imported(name, _watch_writer)
    when_imported(_SUMMARY_MODULE, _watch_folders)
    when_imported("tensorflow.python.summary.tb_summary", _watch_summaries)


def _watch_writer(module: Any) -> None:
    """Report the scalars of PyTorch's SummaryWriter, or of tensorboardX's, its model."""
    kind = module.SummaryWriter
    kind.add_scalar = _after_one(kind.add_scalar)
    kind.add_scalars = _after_many(kind.add_scalars)


def _folder(writer: Any) -> Any:
    return getattr(writer, "log_dir", getattr(writer, "logdir", ""))  # PyTorch's; tensorboardX's


def _after_one(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_scalar(
        self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(self, tag, scalar_value, global_step, *args, **kwargs)
        if spans.recorder.on:
            metrics.points.add({_names.of(tag, _folder(self)): scalar_value}, global_step)
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
            values = {
                _names.of(f"{main_tag}/{tag}", _folder(self)): value
                for tag, value in tag_scalar_dict.items()
            }
            metrics.points.add(values, global_step)
        return result

    return add_scalars


def _watch_folders(module: Any) -> None:
    """Make `tf.summary.create_file_writer` store the folder on its writers, which lack it."""
    original = module.create_file_writer_v2

    @functools.wraps(original)
    def create_file_writer(logdir: Any, *args: Any, **kwargs: Any) -> Any:
        writer = original(logdir, *args, **kwargs)
        writer.rankroom_folder = logdir
        return writer

    # With this, AutoGraph calls the function without converting it.
    create_file_writer.autograph_info__ = {}  # type: ignore[attr-defined]
    module.create_file_writer_v2 = create_file_writer


def _watch_summaries(module: Any) -> None:
    """Report scalars that `tf.summary.scalar` writes: with a default writer, outside of a graph."""
    original = module.scalar

    @functools.wraps(original)
    def scalar(
        name: Any, data: Any, step: Any = None, description: Any = None, **kwargs: Any
    ) -> Any:
        written = original(name, data, step=step, description=description, **kwargs)
        if spans.recorder.on and sys.modules[_CONTEXT_MODULE].executing_eagerly() and bool(written):
            tensorflow: Any = sys.modules["tensorflow"]
            if step is None:
                step = tensorflow.summary.experimental.get_step()
            scope = tensorflow.get_current_name_scope()
            tag = f"{scope}/{name}" if scope else name
            metrics.points.add({_names.of(tag, _default_folder()): data}, step)
        return written

    # With this, AutoGraph calls the function without converting it.
    scalar.autograph_info__ = {}  # type: ignore[attr-defined]
    module.scalar = scalar


def _default_folder() -> Any:
    """Return the folder of TensorFlow's default summary writer, "" if it is unknown."""
    state = getattr(sys.modules.get(_SUMMARY_MODULE), "_summary_state", None)
    return getattr(getattr(state, "writer", None), "rankroom_folder", "")
