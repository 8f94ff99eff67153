"""A simulated GPU and driver: an event is complete once the test has let the GPU reach it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.rank.frameworks.torch import torch_device


class Event:
    """Complete once the GPU has reached the place where it was recorded."""

    at = 0  # the place that the GPU has reached
    recorded = 0
    asked = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.place = 0
        self.device = ""

    def record(self, stream: str | Stream) -> None:
        if isinstance(stream, Stream):
            assert stream.query()
            return
        device = stream.removeprefix("stream of ")
        assert self.device in ("", device), "an event is of one device"
        self.device = device
        Event.recorded += 1
        self.place = Event.recorded

    def synchronize(self) -> None:
        assert self.query()

    def query(self) -> bool:
        Event.asked += 1
        return self.place <= Event.at

    def elapsed_time(self, other: Event) -> float:
        """In milliseconds: the GPU takes two per place."""
        assert self.query() and other.query()
        return 2.0 * (other.place - self.place)


class Stream:
    """A stream of the pool that NCCL uses, too."""

    busy = False

    def __init__(self, device: str) -> None:
        assert device.startswith("cuda:")

    def query(self) -> bool:
        Event.asked += 1
        return not Stream.busy


def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`torch.cuda`, as far as it is used; `added` has the spans and notes that were recorded."""
    Event.at = Event.recorded = Event.asked = 0
    monkeypatch.setattr(Stream, "busy", False)
    cuda = SimpleNamespace(
        Event=Event,
        Stream=Stream,
        current_device=lambda: 1,
        current_stream=lambda device: f"stream of {device}",
        is_current_stream_capturing=lambda: False,
        is_initialized=lambda: True,
        added=[],
    )
    torch = SimpleNamespace(cuda=cuda, device=lambda kind, number: f"{kind}:{number}")
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name, fresh in (
        ("_spare", {}), ("_clocks", {}), ("_failed", False), ("_missed", False),
        ("_in_graphs", False), ("_captures", 0),
    ):  # fmt: skip
        monkeypatch.setattr(torch_device, name, fresh)
    monkeypatch.setattr(torch_device.recorder, "on", True)
    monkeypatch.setattr(torch_device.recorder, "add", lambda *span: cuda.added.append(span))
    monkeypatch.setattr(torch_device.recorder, "note", cuda.added.append)
    yield cuda
    torch_device.forget()
    torch_device._begun.clear()
