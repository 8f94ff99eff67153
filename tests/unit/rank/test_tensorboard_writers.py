"""Scalars of fake TensorBoard writers as metrics: names, steps, and writers left unchanged."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from rankroom.rank.frameworks import tensorboard_writers
from rankroom.rank.frameworks.tensorflow import keras_metrics
from rankroom.reporting import metrics
from rankroom.reporting.spans import recorder


@pytest.fixture
def points() -> Iterator[metrics.MetricRecorder]:
    """The metrics of a run that has just begun."""
    recorder.begin()
    metrics.points.begin()
    yield metrics.points
    recorder.leave()
    metrics.points.leave()


def taken(points: metrics.MetricRecorder) -> list[tuple[str, Any, Any]]:
    events = list(points.take(0))
    names = list(points._numbers)
    return [
        (names[number], step, value)
        for event in events
        for number, step, value in zip(event["name"], event["step"], event["value"], strict=True)
    ]


class Writer:
    """Stands in for PyTorch's SummaryWriter; keeps its calls instead of writing files."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: Any = None, walltime: Any = None
    ) -> str:
        if scalar_value is None:
            raise ValueError("mine")
        self.told.append((tag, scalar_value, global_step, walltime))
        return "written"

    def add_scalars(self, main_tag: str, tag_scalar_dict: Any, global_step: Any = None) -> None:
        self.told.append((main_tag, tag_scalar_dict, global_step))


@pytest.fixture
def writer() -> Writer:
    kind = type("Writer", (Writer,), {})
    tensorboard_writers._watch_writer(types.SimpleNamespace(SummaryWriter=kind))
    return kind()


def test_scalars_of_a_summary_writer_become_metrics(points: metrics.MetricRecorder, writer: Writer):
    assert writer.add_scalar("loss/train", 0.5, 3, walltime=1.0) == "written"
    writer.add_scalar(tag="loss/train", scalar_value=0.25, global_step=4)
    writer.add_scalar("rate", 0.1)
    writer.add_scalars("acc", {"train": 1, "val": 0}, 7)
    assert writer.told == [
        ("loss/train", 0.5, 3, 1.0), ("loss/train", 0.25, 4, None), ("rate", 0.1, None, None),
        ("acc", {"train": 1, "val": 0}, 7),
    ]  # fmt: skip
    assert taken(points) == [
        ("loss/train", 3, 0.5), ("loss/train", 4, 0.25), ("rate", 0, 0.1), ("acc/train", 7, 1),
        ("acc/val", 7, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("attribute", ["log_dir", "logdir"])
def test_each_folder_has_a_curve_of_its_own(
    points: metrics.MetricRecorder, writer: Writer, attribute: str
):
    writers = [type(writer)() for _ in range(4)]
    folders = ("runs/a/train", "runs/a/val", "runs/b/val", "runs/a/train/")
    for each, folder in zip(writers, folders, strict=True):
        setattr(each, attribute, folder)
    for step in range(2):
        for number, each in enumerate(writers[:3]):
            each.add_scalar("loss", number, step)
    writers[3].add_scalar("loss", 0, 2)  # a second writer for the first one's folder
    assert taken(points) == [
        ("loss", 0, 0), ("val/loss", 0, 1), ("b/val/loss", 0, 2),
        ("loss", 1, 0), ("val/loss", 1, 1), ("b/val/loss", 1, 2),
        ("loss", 2, 0),
    ]  # fmt: skip
    recorder.begin()
    recorder.began += 1
    points.begin()
    writers[1].add_scalar("loss", 1, 0)
    assert taken(points) == [("loss", 0, 1)], "another run has names of its own"


def test_a_value_the_writer_rejects_is_no_metric(points: metrics.MetricRecorder, writer: Writer):
    with pytest.raises(ValueError, match="mine"):
        writer.add_scalar("loss", None, 3)
    assert taken(points) == []


def test_between_runs_a_writer_records_no_metrics(writer: Writer):
    assert not recorder.on
    assert writer.add_scalar("loss", 0.5, 3) == "written"
    assert list(metrics.points.take(0)) == []


@pytest.mark.parametrize(
    ("eager", "written", "kept"),
    [(True, True, [("loss", 3, 0.5)]), (True, False, []), (False, object(), [])],
)
def test_tensorflow_summaries_become_metrics_only_if_written(
    points: metrics.MetricRecorder,
    monkeypatch: pytest.MonkeyPatch,
    eager: bool,
    written: Any,
    kept: list[Any],
):
    context = types.SimpleNamespace(executing_eagerly=lambda: eager)
    monkeypatch.setitem(sys.modules, tensorboard_writers._CONTEXT_MODULE, context)
    tensorflow = types.SimpleNamespace(get_current_name_scope=lambda: "")
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)

    def scalar(name: str, data: Any, step: Any = None, description: Any = None) -> Any:
        return written

    module: Any = types.SimpleNamespace(scalar=scalar)
    tensorboard_writers._watch_summaries(module)
    assert module.scalar("loss", 0.5, step=3) is written
    assert module.scalar.autograph_info__ == {}
    assert taken(points) == kept


def test_tensorflow_summaries_are_named_by_folder_and_scope(
    points: metrics.MetricRecorder, monkeypatch: pytest.MonkeyPatch
):
    scope = ""
    tensorflow = types.SimpleNamespace(get_current_name_scope=lambda: scope)
    context = types.SimpleNamespace(executing_eagerly=lambda: True)
    state = types.SimpleNamespace(writer=None)
    writers: Any = types.SimpleNamespace(
        create_file_writer_v2=lambda logdir, name=None: types.SimpleNamespace(),
        _summary_state=state,
    )
    for name, fake in (
        ("tensorflow", tensorflow), (tensorboard_writers._CONTEXT_MODULE, context),
        (tensorboard_writers._SUMMARY_MODULE, writers),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, fake)
    module: Any = types.SimpleNamespace(scalar=lambda name, data, step, description=None: True)
    tensorboard_writers._watch_folders(writers)
    tensorboard_writers._watch_summaries(module)
    train, test = (writers.create_file_writer_v2(f"logs/{name}") for name in ("train", "test"))
    for step in range(2):
        for value, state.writer in ((1, train), (2, test)):
            module.scalar("loss", value, step=step)
    for scope in ("D", "G"):  # noqa: B007
        module.scalar("loss", 3, step=0)
    assert taken(points) == [
        ("loss", 0, 1), ("test/loss", 0, 2), ("loss", 1, 1), ("test/loss", 1, 2),
        ("D/loss", 0, 3), ("G/loss", 0, 3),
    ]  # fmt: skip


class CallbackList:
    """Stands in for Keras' CallbackList; keeps what it would pass on."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.told.append((batch, logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.told.append((epoch, logs))


def test_keras_batches_and_epochs_are_on_one_axis(points: metrics.MetricRecorder):
    kind = type("CallbackList", (CallbackList,), {})
    keras_metrics.watch_training(types.SimpleNamespace(CallbackList=kind))

    def fit() -> None:
        callbacks = kind()
        for epoch in range(2):
            for batch in range(3):
                callbacks.on_train_batch_end(batch, {"loss": batch, "of": {"a": 1}})
            logs = {"loss": 2, "of": {"a": 1}, "val_loss": 10 + epoch}
            callbacks.on_epoch_end(epoch=epoch, logs=logs)
        assert len(callbacks.told) == 8

    fit()
    found = taken(points)
    steps = [(step, value) for name, step, value in found if name == "loss"]
    assert steps == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]
    assert [each for each in found if each[0] == "val_loss"] == [
        ("val_loss", 2, 10), ("val_loss", 5, 11),
    ]  # fmt: skip
    assert ("a", 5, 1) in found
    fit()
    assert [step for name, step, _ in taken(points) if name == "loss"] == [6, 7, 8, 9, 10, 11]
    recorder.begin()
    recorder.began += 1
    points.begin()
    fit()
    assert taken(points)[0][:2] == ("loss", 0), "another run counts from 0"


def test_keras_steps_go_on_where_fit_was_left_in_the_middle_of_an_epoch(
    points: metrics.MetricRecorder,
):
    kind = type("CallbackList", (CallbackList,), {})
    keras_metrics.watch_training(types.SimpleNamespace(CallbackList=kind))
    for batches in (4, 1, 3):
        callbacks = kind()
        for batch in range(batches):
            callbacks.on_train_batch_end(batch, {"loss": batch})
    callbacks.on_epoch_end(epoch=0, logs={"val_loss": 9})
    found = taken(points)
    assert [step for name, step, _ in found if name == "loss"] == list(range(8))
    assert found[-1] == ("val_loss", 7, 9)
