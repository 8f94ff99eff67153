"""Collectives that a rank's GPU waits in, with a fake driver whose events end on command."""

import sys
import threading
from types import SimpleNamespace

import pytest

from pretended_gpu import Event, Stream, pretend
from rankroom.rank.frameworks.torch import torch_device
from rankroom.rank.world import ReleasedError


@pytest.fixture
def cuda(monkeypatch):
    yield from pretend(monkeypatch)


def call(what: str, number: int = -1, device: str = "cuda:1") -> None:
    followed = torch_device.begin(device)
    assert followed is not None
    torch_device.end(followed, what, number)


def test_the_collective_that_the_gpu_is_blocked_in_is_named(cuda):
    call("dist.all_reduce #1")
    call("dist.all_reduce #2")
    assert torch_device.blocking_collective() is None  # it is computing the first one's input
    Event.at = 1
    what, seconds = torch_device.blocking_collective()
    assert what == "dist.all_reduce #1 on its GPU" and seconds < 1
    Event.at = 2  # the first has ended, and the GPU has not reached the second
    assert torch_device.blocking_collective() is None
    Event.at = 3
    assert torch_device.blocking_collective()[0].startswith("dist.all_reduce #2")
    Event.at = 4
    assert torch_device.blocking_collective() is None


def test_blocked_time_counts_from_when_the_gpu_reaches_the_collective(cuda, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        torch_device, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: 0)
    )
    call("dist.barrier #1")
    now[0] += 50  # spent computing
    assert torch_device.blocking_collective() is None
    Event.at = 1
    assert torch_device.blocking_collective()[1] == 0
    now[0] += 7
    assert torch_device.blocking_collective()[1] == 7


def test_collectives_on_the_cpu_or_in_a_cuda_graph_are_not_followed(cuda):
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
    call("dist.send #1", -1)  # -1: no span
    Event.at = 6
    torch_device.finish()
    # The GPU reaches the first one after 2 ms, and completes it 2 ms later.
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
    assert torch_device.CELL_END_TIMEOUT_S <= now[0] < torch_device.CELL_END_TIMEOUT_S + 0.2
    assert cuda.added == [] and not torch_device._followed


def test_a_gpu_clock_is_synchronized_again_after_its_lifetime(cuda, monkeypatch):
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
    now[0] += 2 * torch_device.CLOCK_LIFETIME_S
    call("dist.barrier #3")
    assert torch_device._clocks["cuda:1"].us == 120_000_000


def test_a_failure_to_follow_a_gpu_is_noted_once_and_raises_nothing(cuda, monkeypatch):
    def fails(self, other):
        raise ValueError("no such event")

    monkeypatch.setattr(Event, "elapsed_time", fails)
    call("dist.all_reduce #1", 4)
    Event.at = 9
    torch_device.finish()
    [note] = cuda.added
    assert "no longer in the timeline: ValueError: no such event" in note
    assert torch_device.begin("cuda:1") is None


def test_thousands_of_collectives_use_a_bounded_number_of_cuda_events(cuda):
    for number in range(5000):
        Event.at = max(0, Event.recorded - 20)  # a GPU that is ten collectives behind
        call(f"dist.all_reduce #{number}")
    spare = sum(map(len, torch_device._spare.values()))
    assert len(torch_device._followed) + spare <= torch_device.PRUNE_EVERY + 20
    for number in range(1000):  # and then a GPU that hangs
        if (followed := torch_device.begin("cuda:1")) is not None:
            torch_device.end(followed, f"later #{number}", -1)
    assert len(torch_device._followed) <= torch_device.MAX_FOLLOWED


def test_a_failed_gpu_is_not_blocked_in_a_collective(cuda, monkeypatch):
    call("dist.all_reduce #1")
    Event.at = 1

    def fails(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Event, "query", fails)
    assert torch_device.blocking_collective() is None


# The last line of each of PyTorch's CUDA errors.
DSA = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        ("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'" + DSA, True),
        ("CUDA error: an illegal memory access was encountered" + DSA, True),
        ("CUDA error: an illegal instruction was encountered" + DSA, True),
        ("CUDA error: misaligned address" + DSA, True),
        ("CUDA error: hardware stack error" + DSA, True),
        ("CUDA error: the launch timed out and was terminated" + DSA, True),
        ("CUDA error: uncorrectable ECC error encountered" + DSA, True),
        ("HIP error: unspecified launch failure", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an address", True),
        ("CUDA out of memory. Tried to allocate 32768.00 GiB.", False),
        ("CUDA error: invalid device ordinal" + DSA, False),
        ("CUDA error: out of memory" + DSA, False),
        ("CUDA error: no kernel image is available for execution on the device" + DSA, False),
        ("CUDA error: operation not permitted when stream is capturing" + DSA, False),
        ("index out of range in self", False),
    ],
)
def test_errors_after_which_a_gpu_is_of_no_use(error, is_lost):
    assert torch_device.is_lost(error) == is_lost


def test_a_gpu_is_in_a_collective_until_all_given_to_it_have_ended(cuda):
    assert torch_device.sees_all() and not torch_device.is_in_collective()
    call("dist.all_reduce #1")
    call("dist.all_reduce #1", device="cuda:2")
    Event.at = 2
    assert torch_device.is_in_collective()  # on the second device
    Event.at = 4
    assert not torch_device.is_in_collective()  # other work may still keep it busy
    followed = torch_device.begin("cuda:1")
    Event.at = 5
    assert torch_device.is_in_collective()  # its call has not returned
    torch_device.drop(followed)
    assert not torch_device.is_in_collective()


def test_a_possible_collective_counts_once_the_gpu_was_given_it(cuda):
    given = []
    followed = torch_device.begin("cuda:1", lambda: bool(given))
    assert not torch_device.is_in_collective()
    given.append("a gradient")
    assert torch_device.is_in_collective()
    torch_device.end(followed, "averaging", -1)
    Event.at = 2
    assert not torch_device.is_in_collective() and followed.is_given is None


def test_other_threads_collectives_are_followed(cuda):
    thread = threading.Thread(target=call, args=["dist.reduce_scatter_tensor #1"])
    thread.start()
    thread.join()
    assert torch_device.is_in_collective()


def test_sees_all_is_false_if_a_collective_may_not_be_followed(cuda, monkeypatch):
    torch_device.miss()
    assert not torch_device.sees_all()
    torch_device.finish()  # the missed collective was this cell's
    assert torch_device.sees_all()
    cuda.is_current_stream_capturing = lambda: True
    assert torch_device.begin("cuda:1") is None
    torch_device.finish()
    assert not torch_device.sees_all()  # a graph may run in any cell
    monkeypatch.setattr(torch_device, "_in_graphs", False)
    monkeypatch.setattr(torch_device, "_failed", True)
    assert not torch_device.sees_all()
    monkeypatch.setattr(torch_device, "_failed", False)
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", SimpleNamespace())
    assert not torch_device.sees_all()


def test_no_event_is_destroyed_while_its_collective_may_hang(cuda, monkeypatch):
    destroyed = []
    monkeypatch.setattr(Event, "__del__", lambda self: destroyed.append(self), raising=False)
    call("dist.all_reduce #1")
    torch_device.forget()  # it is to be aborted
    assert destroyed == [] and not torch_device._followed
    call("dist.all_reduce #2")
    assert sum(map(len, torch_device._spare.values())) == 0  # the same events are reused


def test_each_device_has_events_of_its_own(cuda):
    for number in range(3):
        for device in ("cuda:1", "cuda:2"):
            call(f"dist.all_reduce #{number}", device=device)
        Event.at = Event.recorded
        torch_device.finish()
    assert cuda.added == []  # no note that collectives are no longer followed
    assert {name: len(spare) for name, spare in torch_device._spare.items()} == {
        "cuda:1": 1, "cuda:2": 1,
    }  # fmt: skip


def test_completed_collectives_make_room_for_following_new_ones(cuda):
    for number in range(torch_device.MAX_FOLLOWED):
        call(f"dist.all_reduce #{number}")
    assert torch_device.begin("cuda:1") is None  # all of them may hang
    assert not torch_device.sees_all()
    Event.at = Event.recorded
    call("dist.all_reduce #1000")
    assert len(torch_device._followed) == 1


def test_a_gpu_clock_is_not_synchronized_while_its_stream_is_busy(cuda, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        torch_device,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], time_ns=lambda: int(now[0] * 1e9)),
    )
    Stream.busy = True
    call("dist.barrier #1", 4)
    assert torch_device._clocks == {}
    Stream.busy = False
    call("dist.barrier #2", 5)
    first = torch_device._clocks["cuda:1"]
    now[0] += 2 * torch_device.CLOCK_LIFETIME_S
    Stream.busy = True
    call("dist.barrier #3", 6)
    assert torch_device._clocks["cuda:1"] is first
    Event.at = Event.recorded
    torch_device._prune()
    assert [span[1] for span in cuda.added] == [5, 6]  # the time of the first one is unknown


@pytest.mark.parametrize("where", ["current_stream", "record", "begin again", "end"])
def test_a_release_while_a_collective_is_being_followed_is_raised(cuda, monkeypatch, where):
    def released(*args):
        raise ReleasedError("the others do not join")

    followed = torch_device.begin("cuda:1")
    if where == "current_stream":
        cuda.current_stream = released
    else:
        monkeypatch.setattr(Event, "record", released)
    with pytest.raises(ReleasedError):
        if where == "begin again":
            torch_device.begin_again(followed, "cuda:1")
        elif where == "end":
            torch_device.end(followed, "dist.all_reduce #1", -1)
        else:
            torch_device.begin("cuda:1")
    assert not torch_device._failed and cuda.added == []


class Graph:
    """A CUDA graph whose capture fails if `fails` is set."""

    fails = False

    def capture_begin(self, *args):
        if self.fails:
            raise RuntimeError("no")

    def capture_end(self):
        if self.fails:
            raise RuntimeError("it was invalidated")


@pytest.fixture
def graph(cuda):
    kind = type("CUDAGraph", (Graph,), {})
    torch_device._watch_captures(SimpleNamespace(CUDAGraph=kind))
    cuda.default_stream = pytest.fail
    return kind()


def test_a_gpu_is_asked_nothing_while_a_graph_is_recorded(cuda, graph):
    call("dist.all_reduce #1")
    Event.at = 2
    graph.capture_begin("a pool")
    Event.asked = 0
    assert torch_device.blocking_collective() is None
    assert torch_device.is_in_collective()  # as far as is known
    assert torch_device.is_busy("cuda:1")
    assert not torch_device.is_over(SimpleNamespace(is_completed=pytest.fail))
    assert torch_device.begin("cuda:1") is None
    torch_device._prune()
    assert Event.asked == 0
    graph.capture_end()
    assert not torch_device.is_in_collective() and Event.asked > 0


def test_a_cuda_graph_capture_that_fails_counts_as_ended(cuda, graph):
    graph.fails = True
    with pytest.raises(RuntimeError, match="no"):
        graph.capture_begin()
    assert torch_device._captures == 0
    graph.fails = False
    graph.capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert torch_device._captures == 0
