"""Report the values that Keras' `fit` passes to its callbacks as metrics, with a point per batch.

Names are those in `logs`. Within an epoch, Keras passes running means, so the last batch has the
epoch's values: at the end of an epoch, only names that batches do not have are added, such as those
of the validation, at the step of the epoch's last batch. Steps continue to count if a cell calls
`fit` again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rankroom.reporting import metrics, spans


class _Fit:
    """How far the current training is."""

    began = 0  # when the run began, as in `spans.recorder.began`
    begin = 0  # the step of the epoch's first batch
    step = -1  # of the latest batch
    index = -1  # of the latest batch, within its epoch
    seen: frozenset[str] = frozenset()  # names that each batch has


_fit = _Fit()


def watch_training(module: Any) -> None:
    """Make Keras' CallbackList report the logs passed to it, whatever callbacks it holds."""
    kind = module.CallbackList
    for name, report in (("on_train_batch_end", _batch), ("on_epoch_end", _epoch)):
        if hasattr(kind, name):
            setattr(kind, name, _before(getattr(kind, name), report))


def _before(original: Callable[..., Any], report: Callable[[int, Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        if spans.recorder.on:
            # Called as `on_epoch_end(epoch, logs)`, or with `batch` instead of `epoch`.
            index = args[0] if args else kwargs.get("epoch", kwargs.get("batch"))
            if isinstance(index, int):
                report(index, args[1] if len(args) > 1 else kwargs.get("logs"))
        return original(self, *args, **kwargs)

    return told


def _batch(index: int, logs: Any) -> None:
    if _fit.began != spans.recorder.began:
        _fit.began, _fit.begin, _fit.step, _fit.index = spans.recorder.began, 0, -1, -1
    if index <= _fit.index:  # `fit` ended in the middle of an epoch, and was called again
        _fit.begin = _fit.step + 1
    _fit.step, _fit.index = _fit.begin + index, index
    if logs:
        values = _flat(logs)
        _fit.seen = frozenset(values)
        metrics.points.add(values, _fit.step)


def _epoch(index: int, logs: Any) -> None:
    if _fit.began != spans.recorder.began:
        return  # no batch was reported in this run
    new = {name: value for name, value in _flat(logs or {}).items() if name not in _fit.seen}
    if new:
        metrics.points.add(new, max(_fit.step, 0))
    _fit.begin, _fit.index = _fit.step + 1, -1


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the nested logs of a model with several outputs, as Keras does."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value))
        else:
            flat[name] = value
    return flat
