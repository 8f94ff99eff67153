"""What Keras' `fit` tells its callbacks, as metrics: names as in `logs`, a point for each batch.

Within an epoch Keras' figures are means so far, so that the last of them is the epoch's: at its end
only those are new that a batch does not have, as of the validation. They stand at the step of the
epoch's last batch. Steps go on counting if a cell calls `fit` again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rankroom.reporting import metrics, spans


class _Fit:
    """Where the present training is."""

    began = 0  # of the run
    begin = 0  # the step of the epoch's first batch
    step = -1  # of the latest batch
    index = -1  # of that in its epoch
    seen: frozenset[str] = frozenset()  # what each batch has


_fit = _Fit()


def watch_training(module: Any) -> None:
    """Have Keras' list of callbacks, whoever is on it, report what it is told."""
    kind = module.CallbackList
    for name, report in (("on_train_batch_end", _batch), ("on_epoch_end", _epoch)):
        if hasattr(kind, name):
            setattr(kind, name, _before(getattr(kind, name), report))


def _before(original: Callable[..., Any], report: Callable[[int, Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        if spans.recorder.on:
            # Called as `on_epoch_end(epoch, logs)`, and `batch` instead of `epoch`.
            index = args[0] if args else kwargs.get("epoch", kwargs.get("batch"))
            if isinstance(index, int):
                report(index, args[1] if len(args) > 1 else kwargs.get("logs"))
        return original(self, *args, **kwargs)

    return told


def _batch(index: int, logs: Any) -> None:
    if _fit.began != spans.recorder.began:
        _fit.began, _fit.begin, _fit.step, _fit.index = spans.recorder.began, 0, -1, -1
    if index <= _fit.index:  # `fit` was left in the middle of an epoch, and called again
        _fit.begin = _fit.step + 1
    _fit.step, _fit.index = _fit.begin + index, index
    if logs:
        values = _flat(logs)
        _fit.seen = frozenset(values)
        metrics.points.add(values, _fit.step)


def _epoch(index: int, logs: Any) -> None:
    if _fit.began != spans.recorder.began:
        return  # no batch came before
    new = {name: value for name, value in _flat(logs or {}).items() if name not in _fit.seen}
    if new:
        metrics.points.add(new, max(_fit.step, 0))
    _fit.begin, _fit.index = _fit.step + 1, -1


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the levels that a model of several outputs has, as Keras does it."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value))
        else:
            flat[name] = value
    return flat
