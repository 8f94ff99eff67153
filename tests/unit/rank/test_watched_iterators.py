"""Where Keras and TensorFlow are watched, without either."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rankroom.rank.frameworks.tensorflow import tensorflow_steps
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


def test_a_thread_that_reads_ahead_holds_nothing_up(recorder: SpanRecorder):
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
