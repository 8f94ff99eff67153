"""What a rank's GPU waits in, with a driver that is pretended: events that are done when told."""

import sys
from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.torch import torch_device


class Event:
    """Done once the GPU has come to where it was recorded."""

    at = 0  # how far the GPU has come
    recorded = 0

    def __init__(self) -> None:
        self.place = 0

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:1"
        Event.recorded += 1
        self.place = Event.recorded

    def query(self) -> bool:
        return self.place <= Event.at


@pytest.fixture
def cuda(monkeypatch):
    Event.at = Event.recorded = 0
    cuda = SimpleNamespace(
        Event=Event,
        current_stream=lambda device: f"stream of {device}",
        is_current_stream_capturing=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(torch_device, "_spare", [])
    yield cuda
    torch_device.forget()


TENSOR = SimpleNamespace(is_cuda=True, device="cuda:1")


def call(what: str) -> None:
    followed = torch_device.begin(TENSOR)
    assert followed is not None
    torch_device.end(followed, what)


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
    monkeypatch.setattr(torch_device, "time", SimpleNamespace(monotonic=lambda: now[0]))
    call("dist.barrier #1")
    now[0] += 50  # of computing
    assert torch_device.waits_in() is None
    Event.at = 1
    assert torch_device.waits_in()[1] == 0
    now[0] += 7
    assert torch_device.waits_in()[1] == 7


def test_what_is_on_the_cpu_or_in_a_graph_is_not_followed(cuda):
    assert torch_device.begin(SimpleNamespace(is_cuda=False)) is None
    assert torch_device.begin(None) is None
    assert torch_device.begin([TENSOR, TENSOR]) is not None
    cuda.is_current_stream_capturing = lambda: True
    assert torch_device.begin(TENSOR) is None


def test_thousands_that_nobody_asks_for_take_no_more_than_a_few_events(cuda):
    for number in range(5000):
        Event.at = Event.recorded - 20  # a GPU that is ten collectives behind
        call(f"dist.all_reduce #{number}")
    assert len(torch_device._followed) + len(torch_device._spare) <= torch_device.PRUNED + 20
    for number in range(1000):  # and one that hangs
        if (followed := torch_device.begin(TENSOR)) is not None:
            torch_device.end(followed, f"later #{number}")
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
