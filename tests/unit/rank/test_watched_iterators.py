"""The hooks that watch Keras and TensorFlow, tested without either."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.rank.frameworks.tensorflow import keras_metrics, tensorflow_steps
from rankroom.reporting.metrics import MetricRecorder
from rankroom.reporting.spans import SpanRecorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    made = SpanRecorder()
    made.begin()
    monkeypatch.setattr(tensorflow_steps, "recorder", made)
    return made


def test_an_iterator_of_keras_before_3_7_is_left_alone():
    class EpochIterator:
        def enumerate_epoch(self) -> Iterator[int]:
            yield 1

    tensorflow_steps._watch(EpochIterator)
    assert not hasattr(EpochIterator, "__next__")


def test_batches_read_ahead_by_a_thread_add_no_data_span(recorder: SpanRecorder):
    class Batches:
        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> int:
            return 1

    tensorflow_steps._watch(Batches)
    ahead = threading.Thread(target=next, args=(Batches(),))
    ahead.start()
    ahead.join()
    assert list(recorder.take(0)) == []
    next(Batches())
    [event] = recorder.take(0)
    assert event["cat"] == "data"


def test_keras_2_reports_steps_and_metrics_as_keras_3_does(
    recorder: SpanRecorder, monkeypatch: pytest.MonkeyPatch
):
    class CallbackList:
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None: ...
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None: ...
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    hooks: dict[str, Callable[[Any], None]] = {}
    monkeypatch.setattr(tensorflow_steps, "when_imported", hooks.__setitem__)
    monkeypatch.setattr(keras_metrics.spans, "recorder", recorder)
    monkeypatch.setattr(keras_metrics.metrics, "points", points := MetricRecorder())
    tensorflow_steps.install()
    hooks["tf_keras.src.callbacks"](SimpleNamespace(CallbackList=CallbackList))
    told = CallbackList()
    told.on_epoch_begin(0)
    told.on_train_batch_begin(0)
    told.on_train_batch_end(0, {"loss": 0.5})
    told.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.25})
    [steps] = [each for each in recorder.take(0) if each["cat"] == "step"]
    assert [each["name"] for each in steps["define"]] == ["batch", "epoch 1"]
    [reported] = points.take(0)
    assert (reported["define"], reported["value"]) == (["loss", "val_loss"], (0.5, 0.25))
