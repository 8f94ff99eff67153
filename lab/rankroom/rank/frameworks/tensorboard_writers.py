"""Scalars that user code writes for TensorBoard, as metrics under the same names.

TensorBoard has a curve for each tag of each folder. Here the first folder of a run with a tag has
the tag as its metric; from any other the end of its path comes first, as in `val/loss`. The files
that the code writes are as without us.
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

_EAGER = "tensorflow.python.eager.context"
_WRITERS = "tensorflow.python.ops.summary_ops_v2"


class _Names:
    """The names of metrics in the present run, and the folder that each is of."""

    began = 0  # of the run

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def of(self, tag: Any, folder: Any) -> str:
        """What scalars with this tag are called that go to this folder."""
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
    when_imported(_WRITERS, _watch_folders)
    when_imported("tensorflow.python.summary.tb_summary", _watch_summaries)


def _watch_writer(module: Any) -> None:
    """PyTorch's SummaryWriter, and the one that it was made after."""
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
    """TensorFlow's `tf.summary.create_file_writer`: what it makes does not know its folder."""
    original = module.create_file_writer_v2

    @functools.wraps(original)
    def create_file_writer(logdir: Any, *args: Any, **kwargs: Any) -> Any:
        writer = original(logdir, *args, **kwargs)
        writer.rankroom_folder = logdir
        return writer

    # AutoGraph calls it as it is.
    create_file_writer.autograph_info__ = {}  # type: ignore[attr-defined]
    module.create_file_writer_v2 = create_file_writer


def _watch_summaries(module: Any) -> None:
    """TensorFlow's `tf.summary.scalar`, where it writes: with a writer, and outside of a graph."""
    original = module.scalar

    @functools.wraps(original)
    def scalar(
        name: Any, data: Any, step: Any = None, description: Any = None, **kwargs: Any
    ) -> Any:
        written = original(name, data, step=step, description=description, **kwargs)
        if spans.recorder.on and sys.modules[_EAGER].executing_eagerly() and bool(written):
            tensorflow: Any = sys.modules["tensorflow"]
            if step is None:
                step = tensorflow.summary.experimental.get_step()
            scope = tensorflow.get_current_name_scope()
            tag = f"{scope}/{name}" if scope else name
            metrics.points.add({_names.of(tag, _default_folder()): data}, step)
        return written

    # AutoGraph calls it as it is.
    scalar.autograph_info__ = {}  # type: ignore[attr-defined]
    module.scalar = scalar


def _default_folder() -> Any:
    """That of the writer which TensorFlow's summaries go to now."""
    state = getattr(sys.modules.get(_WRITERS), "_summary_state", None)
    return getattr(getattr(state, "writer", None), "rankroom_folder", "")
