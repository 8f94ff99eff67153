"""Metrics as a rank collects them: values of all kinds, names, steps, and long runs."""

from __future__ import annotations

import decimal
import fractions
import json
import math
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

import rankroom
from rankroom.record.model import SCHEMA_FILE, event_line, parse_event
from rankroom.reporting import metrics, spans
from rankroom.reporting.metrics import MetricRecorder, log
from rankroom.reporting.spans import recorder

ZERO = 1_000_000


@pytest.fixture
def made() -> Iterator[MetricRecorder]:
    """The recorder of a run that has just begun."""
    recorder.begin()
    metrics.points.begin()
    yield metrics.points
    recorder.leave()
    metrics.points.leave()


def taken(made: MetricRecorder) -> list[tuple[str, Any, Any]]:
    """Name, step and value of all points since the last call."""
    events = list(made.take(ZERO))
    names = list(made._numbers)
    return [
        (names[number], step, value)
        for fields in events
        for number, step, value in zip(fields["name"], fields["step"], fields["value"], strict=True)
    ]


def test_points_are_columns_and_names_are_defined_once(made: MetricRecorder):
    before = time.time_ns() // 1000
    log(loss=0.5, acc=0.25, step=7)
    (first,) = made.take(before)
    assert first["from"] == 0 and first["define"] == ["loss", "acc"]
    assert (first["name"], first["step"], first["value"]) == ((0, 1), (7, 7), (0.5, 0.25))
    assert 0 <= first["at"][0] < 10_000_000 and first["at"][1] == 0
    log(acc=1, extra=2)
    (second,) = made.take(before)
    assert (second["from"], second["define"]) == (2, ["extra"])
    assert (second["name"], second["value"]) == ((1, 2), (1, 2))
    log(loss=3)
    (third,) = made.take(before)
    assert "define" not in third
    assert list(made.take(before)) == []


def test_a_metrics_event_conforms_to_the_schema(made: MetricRecorder):
    log(loss=0.5, acc=float("nan"), step=7)
    log(loss=np.float32(0.5), step=1.5)
    (fields,) = made.take(ZERO)
    event = parse_event(event_line("metrics", 0, 1, 5, **fields))
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator({"$ref": "#/$defs/Event", "$defs": schema["$defs"]}).validate(
        event
    )
    assert event is not None and event["value"] == [0.5, "NaN", 0.5]


def test_without_a_step_the_values_of_each_name_are_counted(made: MetricRecorder):
    for _ in range(3):
        log(loss=1.0)
    log(acc=1.0)
    log(loss=1.0, acc=2.0)
    assert [(name, step) for name, step, _ in taken(made)] == [
        ("loss", 0), ("loss", 1), ("loss", 2), ("acc", 0), ("loss", 3), ("acc", 1),
    ]  # fmt: skip


def test_given_steps_are_kept_and_invalid_ones_are_counted_instead(made: MetricRecorder):
    steps = [5, 2, 2, -1, 0.5, np.int64(9), np.array(3), 2.0]
    for step in steps:
        log(loss=1.0, step=step)
    found = [step for _, step, _ in taken(made)]
    assert found == [5, 2, 2, -1, 0.5, 9, 3, 2]
    assert all(type(step) in (int, float) for step in found)
    for step in (math.nan, math.inf, "five", [1, 2], 1 << 60):
        log(other=1.0, step=step)
    assert [step for _, step, _ in taken(made)] == [0, 1, 2, 3, 4], "counted instead"
    assert recorder.new_notes() == [metrics.NO_STEP]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (3, 3),
        (True, 1),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int8(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (decimal.Decimal("0.25"), 0.25),
        (fractions.Fraction(1, 4), 0.25),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32("nan"), "NaN"),
        (10**400, "Infinity"),
        (-(10**400), "-Infinity"),
        (fractions.Fraction(-(10**400)), "-Infinity"),
        (decimal.Decimal("inf"), "Infinity"),
        (1 << 60, float(1 << 60)),
        (5e-324, 5e-324),
    ],
)
def test_numbers_of_all_kinds_are_recorded(made: MetricRecorder, value: Any, kept: Any):
    log(loss=value)
    assert taken(made) == [("loss", 0, kept)]
    json.loads(json.dumps(kept, allow_nan=False))


class Breaks:
    def __float__(self) -> float:
        raise RuntimeError("broken")

    @property
    def device(self) -> str:
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    "value", ["0.5", b"1", None, 1j, [1], {}, np.ones(2), np.array("x"), object(), Breaks(), log]
)
def test_a_non_numeric_value_is_dropped_and_noted_once(made: MetricRecorder, value: Any):
    for _ in range(3):
        log(loss=value, acc=1.0)
    assert [name for name, _, _ in taken(made)] == ["acc"] * 3
    (note,) = recorder.new_notes()
    assert note == metrics.NO_NUMBER.format(name="loss", kind=type(value).__name__)


def test_a_metric_that_changes_type_goes_on(made: MetricRecorder):
    for value in (1.0, "nothing", 2, np.float32(3), None, 4.0):
        log(loss=value)
    assert [value for _, _, value in taken(made)] == [1.0, 2, 3.0, 4.0]
    assert len(recorder.new_notes()) == 1


def test_many_non_numeric_metrics_add_a_bounded_number_of_notes(made: MetricRecorder):
    log(**{f"m{i}": "x" for i in range(500)})
    assert taken(made) == []
    assert len(recorder.new_notes()) == metrics.MAX_NOT_A_NUMBER_NOTES


def test_names_beyond_the_limit_are_dropped_and_noted(made: MetricRecorder):
    log(**{f"m{i}": i for i in range(metrics.MAX_NAMES + 5)})
    log(m0=1, new=2)
    found = taken(made)
    assert len(found) == metrics.MAX_NAMES + 1 and found[-1] == ("m0", 1, 1)
    assert recorder.new_notes() == [metrics.TOO_MANY.format(count=metrics.MAX_NAMES)]


def test_a_metric_name_may_be_any_text_and_is_shortened(made: MetricRecorder):
    log(**{"val/loss": 1.0, "": 2.0, "ü\n": 3.0, "x" * 5000: 4.0})
    assert [name for name, _, _ in taken(made)] == ["val/loss", "", "ü\n", "x" * 200]


def test_a_long_run_is_sampled_in_whole_stretches_per_name(
    made: MetricRecorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spans, "UNSAMPLED_SPANS", 100)
    monkeypatch.setattr(spans, "SAMPLED_STRETCH_SPANS", 10)
    monkeypatch.setattr(spans, "MAX_SPANS_PER_EVENT", 64)
    for step in range(2000):
        log(loss=1.0, **({"acc": 1.0} if step % 20 == 0 else {}))
    found = taken(made)
    kept = [step for name, step, _ in found if name == "loss"]
    tenth = [at for at in range(100, 1000) if at // 10 % 10 == 0]
    hundredth = [at for at in range(1000, 2000) if at // 10 % 100 == 0]
    assert kept == [*range(100), *tenth, *hundredth]
    assert sum(name == "acc" for name, _, _ in found) == 100, "each name is counted by itself"
    assert recorder.new_notes() == [metrics.THINNED.format(count=100)]


def test_a_value_is_copied_when_it_is_logged(made: MetricRecorder):
    value = np.array(1.0)
    log(loss=value)
    value += 1
    assert taken(made) == [("loss", 0, 1.0)]


def test_a_flood_keeps_few_calls_pending(made: MetricRecorder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "MAX_STORED_CALLS", 50)
    for step in range(1000):
        log(loss=step)
        assert len(made.calls) <= 51
    assert [value for _, _, value in taken(made)] == list(range(1000))


def test_no_values_of_threads_are_lost_while_a_signal_handler_logs(
    made: MetricRecorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "MAX_STORED_CALLS", 7)
    before, switch = signal.signal(signal.SIGALRM, lambda *_: log(alarm=1)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    found: list[tuple[str, Any, Any]] = []

    def work(name: str) -> None:
        for step in range(2000):
            log(**{name: step})

    try:
        threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        work("main")
        for thread in threads:
            thread.join()
            found += taken(made)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.setswitchinterval(switch)
    found += taken(made)
    for name in ("main", "t0", "t1", "t2"):
        assert [value for each, _, value in found if each == name] == list(range(2000))
    assert any(name == "alarm" for name, _, _ in found)


def test_values_of_a_signal_handler_come_after_those_that_it_interrupts(
    made: MetricRecorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "MAX_STORED_CALLS", 2)
    sort, pressed = made._sort_one, []

    def interrupted(name: str, step: Any, t: int, value: Any) -> None:
        if not pressed:
            pressed.append(value)
            for each in range(4):
                log(loss=10 + each)
        sort(name, step, t, value)

    monkeypatch.setattr(made, "_sort_one", interrupted)
    for each in range(3):
        log(loss=each)
    assert [value for _, _, value in taken(made)] == [0, 1, 2, 10, 11, 12, 13]


def test_a_new_run_has_a_table_of_its_own(made: MetricRecorder):
    log(loss=1.0)
    list(made.take(ZERO))
    log(loss=2.0)
    made.begin()
    assert list(made.take(ZERO)) == [], "it was of the run before"
    log(acc=1.0)
    (fields,) = made.take(ZERO)
    assert (fields["from"], fields["define"], fields["step"]) == (0, ["acc"], (0,))


def test_a_restarted_rank_uses_a_new_range_of_name_numbers(made: MetricRecorder):
    made.begin(2)
    log(loss=1.0, step=5)
    log(acc=2.0, loss=3.0, step=6)
    (fields,) = made.take(ZERO)
    assert (fields["from"], fields["define"]) == (2 * metrics.MAX_NAMES, ["loss", "acc"])
    assert [number - fields["from"] for number in fields["name"]] == [0, 1, 0]
    assert recorder.new_notes() == []
    log(loss=4.0)
    assert len(list(made.take(ZERO))) == 1
    assert recorder.new_notes() == [metrics.COUNTED_AGAIN]


def test_log_does_nothing_outside_a_rank():
    assert not recorder.on
    rankroom.log(loss=1.0, step=3)
    assert list(metrics.points.take(0)) == []


def test_a_forked_process_reports_no_metrics(made: MetricRecorder):
    log(loss=1.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        log(loss=2.0)
        os.write(write, b"%d" % len(list(metrics.points.take(0))))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"0"
    assert len(taken(made)) == 1


# --- values on a GPU, with fake tensors of PyTorch and TensorFlow ---------------------------------


class Tensor:
    """A fake PyTorch tensor on a GPU; `ready` is set once the GPU has computed it."""

    is_cuda = True

    def __init__(self, value: float, ready: threading.Event, count: int = 1) -> None:
        self.device = types.SimpleNamespace(type="cuda")
        self.value, self.ready, self.count = value, ready, count

    def numel(self) -> int:
        return self.count

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.value, self.ready)

    def item(self) -> float:
        assert threading.current_thread() is not threading.main_thread(), "it would wait"
        return self.value


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A fake GPU, whose values are ready once the event is set."""
    ready = threading.Event()
    done = types.SimpleNamespace(record=lambda stream: None, synchronize=ready.wait)
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(Event=lambda: done, current_stream=lambda device: None)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return ready


def test_logging_a_gpu_value_does_not_wait_for_the_gpu(made: MetricRecorder, cuda: threading.Event):
    tensor = Tensor(0.5, cuda)
    log(loss=tensor, step=3)
    tensor.value = 9.0
    log(acc=1.0)
    assert taken(made) == [("acc", 0, 1.0)]
    cuda.set()
    made.settle()
    assert taken(made) == [("loss", 3, 0.5)]


def test_the_end_of_a_run_waits_for_a_gpu_that_is_only_behind(
    made: MetricRecorder, cuda: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    """Each value comes within the time limit, and all of them together do not."""
    monkeypatch.setattr(metrics, "GPU_READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(Tensor, "item", lambda tensor: time.sleep(0.05) or tensor.value)
    cuda.set()
    for step in range(12):
        log(loss=Tensor(step, cuda), step=step)
    made.settle()
    assert taken(made) == [("loss", step, step) for step in range(12)]
    assert recorder.new_notes() == []


class DistributedTensor:
    """A fake of PyTorch's DTensor, whose value is whole on each rank, or must be collected."""

    def __init__(self, *are_replicate: bool) -> None:
        self.placements = [
            types.SimpleNamespace(is_replicate=lambda so=so: so) for so in are_replicate
        ]

    def to_local(self) -> float:
        return 0.5

    def item(self) -> float:
        raise AssertionError("it would communicate")


def test_logging_a_distributed_tensor_does_not_communicate(made: MetricRecorder):
    log(whole=DistributedTensor(True, True), norm=DistributedTensor(True, False))
    assert taken(made) == [("whole", 0, 0.5)]
    [note] = recorder.new_notes()
    assert "'norm'" in note and "log its full_tensor()" in note


def test_without_a_reader_thread_a_gpu_value_waits_for_the_next_report(
    made: MetricRecorder, cuda: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    cuda.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        log(loss=Tensor(0.5, cuda), step=3)
        log(acc=1.0)
        assert taken(made) == [("acc", 0, 1.0)]
        made.settle()
        assert recorder.new_notes() == [metrics.ON_GPU]
    made.settle()
    assert taken(made) == [("loss", 3, 0.5)]


@pytest.mark.thorough
def test_the_end_of_a_run_does_not_wait_for_a_gpu_that_is_stuck(
    made: MetricRecorder, cuda: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "GPU_READ_TIMEOUT_S", 0.05)
    before = threading.enumerate()  # other tests may have left threads
    log(loss=Tensor(0.5, cuda))
    made.settle()
    assert taken(made) == []
    assert recorder.new_notes() == [metrics.ON_GPU]
    # A late value is not assigned to the next run.
    made.begin()
    stuck = [each for each in threading.enumerate() if each not in before]
    assert stuck
    cuda.set()
    for thread in stuck:
        thread.join(5)
    log(acc=1.0)
    made.settle()
    assert taken(made) == [("acc", 0, 1.0)]


def test_a_gpu_tensor_of_several_numbers_is_dropped(made: MetricRecorder, cuda: threading.Event):
    log(loss=Tensor(0.5, cuda, count=4))
    assert taken(made) == []
    assert "(Tensor of 4 numbers)" in recorder.new_notes()[0]


def test_tensorflow_tensors_on_a_gpu_become_metrics(made: MetricRecorder):
    class Eager:
        device = "/job:localhost/replica:0/task:0/device:GPU:0"

        def __float__(self) -> float:
            assert threading.current_thread() is not threading.main_thread()
            return 0.25

    class Variable(Eager):
        def read_value(self) -> Eager:
            return Eager()

    log(loss=Eager(), rate=Variable())
    made.settle()
    assert taken(made) == [("loss", 0, 0.25), ("rate", 0, 0.25)]
