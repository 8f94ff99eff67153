"""What a rank's GPU waits in, with a driver that is pretended: events that are done when told."""

import sys
from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.torch import torch_device


class Event:
    """Done once the GPU has come to where it was recorded."""

    at = 0  # how far the GPU has come
    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.place = 0

    def record(self, stream: str) -> None:
        if stream == "another stream of cuda:1":  # that has nothing to do
            return
        assert stream == "stream of cuda:1"
        Event.recorded += 1
        self.place = Event.recorded

    def synchronize(self) -> None:
        assert self.query()

    def query(self) -> bool:
        return self.place <= Event.at

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds: the GPU takes two for each place."""
        assert self.query() and other.query()
        return 2.0 * (other.place - self.place)


@pytest.fixture
def cuda(monkeypatch):
    Event.at = Event.recorded = 0
    cuda = SimpleNamespace(
        Event=Event,
        Stream=lambda device: f"another stream of {device}",
        current_stream=lambda device: f"stream of {device}",
        is_current_stream_capturing=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for name, fresh in (("_spare", []), ("_clocks", {}), ("_failed", False)):
        monkeypatch.setattr(torch_device, name, fresh)
    added = []
    monkeypatch.setattr(torch_device.recorder, "add", lambda *span: added.append(span))
    monkeypatch.setattr(torch_device.recorder, "note", added.append)
    cuda.added = added
    yield cuda
    torch_device.forget()


def call(what: str, number: int = -1) -> None:
    followed = torch_device.begin("cuda:1")
    assert followed is not None
    torch_device.end(followed, what, number)


def test_the_first_that_others_do_not_join_is_named(cuda):
    call("dist.all_reduce #1")
    call("dist.all_reduce #2")
    assert torch_device.waits_in() is None  # it still computes what the first one sends
    Event.at = 1
    what, seconds = torch_device.waits_in()
    assert what == "dist.all_reduce #1 on its GPU" and seconds < 1
    Event.at = 2  # the first is over, and the second cannot begin
    assert torch_device.waits_in() is None
    Event.at = 3
    assert torch_device.waits_in()[0].startswith("dist.all_reduce #2")
    Event.at = 4
    assert torch_device.waits_in() is None


def test_seconds_count_from_when_it_could_begin(cuda, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        torch_device, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: 0)
    )
    call("dist.barrier #1")
    now[0] += 50  # of computing
    assert torch_device.waits_in() is None
    Event.at = 1
    assert torch_device.waits_in()[1] == 0
    now[0] += 7
    assert torch_device.waits_in()[1] == 7


def test_what_is_on_the_cpu_or_in_a_graph_is_not_followed(cuda):
    tensor = SimpleNamespace(is_cuda=True, device="cuda:1")
    assert torch_device.device_of([tensor, tensor]) == "cuda:1"
    for other in (SimpleNamespace(is_cuda=False), None, [], 3):
        assert torch_device.device_of(other) is None
    assert torch_device.begin(None) is None
    cuda.is_current_stream_capturing = lambda: True
    assert torch_device.begin("cuda:1") is None


def test_spans_have_the_times_of_the_gpu_on_the_clock_of_the_host(cuda, monkeypatch):
    monkeypatch.setattr(
        torch_device, "time",
        SimpleNamespace(
            monotonic=lambda: 50.0, time_ns=lambda: 7_000_000_000, sleep=lambda seconds: None
        ),
    )  # fmt: skip
    call("dist.all_reduce #1", 4)
    call("dist.all_reduce #2", 5)
    call("dist.send #1", -1)  # not to be seen
    Event.at = 6
    torch_device.finish()
    # The GPU comes to the first after 2 ms, and is through with it 2 ms later.
    assert cuda.added == [("collective", 4, 7_002_000, 2000), ("collective", 5, 7_006_000, 2000)]


def test_the_end_of_a_cell_waits_for_a_gpu_but_not_for_long(cuda, monkeypatch):
    now = [0.0]

    def sleep(seconds):
        now[0] += 0.1

    monkeypatch.setattr(
        torch_device,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: 0, sleep=sleep),
    )
    call("dist.all_reduce #1", 4)
    torch_device.finish()
    assert torch_device.LAST_S <= now[0] < torch_device.LAST_S + 0.2
    assert cuda.added == [] and not torch_device._followed


def test_a_clock_is_looked_at_again_after_a_while(cuda, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        torch_device,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: int(now[0] * 1e9)),
    )
    call("dist.barrier #1")
    first = torch_device._clocks["cuda:1"]
    call("dist.barrier #2")
    assert torch_device._clocks["cuda:1"] is first
    now[0] += 2 * torch_device.CLOCK_S
    call("dist.barrier #3")
    assert torch_device._clocks["cuda:1"].us == 120_000_000


def test_what_fails_here_is_said_once_and_costs_the_cell_nothing(cuda, monkeypatch):
    def fails(self, other):
        raise ValueError("no such event")

    monkeypatch.setattr(Event, "elapsed_time", fails)
    call("dist.all_reduce #1", 4)
    Event.at = 9
    torch_device.finish()
    [note] = cuda.added
    assert "not in the timeline any more: ValueError: no such event" in note
    assert torch_device.begin("cuda:1") is None


def test_thousands_that_nobody_asks_for_take_no_more_than_a_few_events(cuda):
    for number in range(5000):
        Event.at = max(0, Event.recorded - 20)  # a GPU that is ten collectives behind
        call(f"dist.all_reduce #{number}")
    assert len(torch_device._followed) + len(torch_device._spare) <= torch_device.PRUNED + 20
    for number in range(1000):  # and one that hangs
        if (followed := torch_device.begin("cuda:1")) is not None:
            torch_device.end(followed, f"later #{number}", -1)
    assert len(torch_device._followed) <= torch_device.MOST


def test_a_gpu_that_has_failed_waits_in_nothing(cuda, monkeypatch):
    call("dist.all_reduce #1")
    Event.at = 1

    def fails(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Event, "query", fails)
    assert torch_device.waits_in() is None


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        ("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("HIP error: unspecified launch failure", True),
        ("CUDA out of memory. Tried to allocate 32768.00 GiB.", False),
        ("CUDA error: invalid device ordinal", False),
        ("index out of range in self", False),
    ],
)
def test_errors_after_which_a_gpu_is_of_no_use(error, is_lost):
    assert torch_device.is_lost(error) == is_lost
