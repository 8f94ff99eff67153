"""How busy ranks are at present: measured when somebody asks, here and beside ranks elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from rankroom.agent import load
from rankroom.agent.load import Loads

BUSY = "print(flush=True)\nwhile True: pass"
ASLEEP = "import time; print(flush=True); time.sleep(1000)"


@pytest.fixture
def processes():
    """One that computes, and one that sleeps."""
    made = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for code in (BUSY, ASLEEP)
    ]
    # One that has just begun has next to no memory, and computes for itself: each says it is there.
    for process in made:
        process.stdout.readline()
    yield {rank: (process.pid, "cpu") for rank, process in enumerate(made)}
    for process in made:
        process.kill()
        process.communicate()


def test_a_look_tells_processor_and_memory_of_each_rank(processes, monkeypatch):
    monkeypatch.setattr(load, "PAUSE_S", 0.0)
    deadline = time.monotonic() + 60
    while True:
        # A first look, which is over a moment; in that, a busy machine may let neither run.
        loads = Loads()
        busy, asleep = loads.look(processes, ())["ranks"].values()
        if busy["cpu"] > asleep["cpu"]:
            break
        assert time.monotonic() < deadline, (busy, asleep)
    for each in (busy, asleep):
        assert each["memory"] > 1 << 20
        assert (each["gpu"], each["gpu_memory"]) == (None, None)


def test_who_asks_too_soon_gets_what_was_seen_last(processes, monkeypatch):
    monkeypatch.setattr(load, "PAUSE_S", 3600.0)
    monkeypatch.setattr(load, "WATCHED_S", 3600.0)  # or a pause makes the second look a first one
    loads = Loads()
    assert loads.look(processes, ()) == loads.look(processes, ())


def test_a_rank_with_a_gpu_says_how_busy_that_is(monkeypatch):
    asked = []

    def handle(number: int) -> int:
        asked.append(number)
        return number

    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=70 + handle),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5 << 30),
        NVMLError=OSError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    seen = Loads().look({3: (os.getpid(), "cuda:1")}, ())["ranks"]
    assert (seen["3"]["gpu"], seen["3"]["gpu_memory"]) == (75, 5 << 30)
    assert asked == [5]


def test_nodes_measure_only_while_somebody_looks(monkeypatch):
    loads = Loads()
    assert not loads.watched
    told = load.whole({"cpu": 12.0, "memory": 1 << 30})

    def say_when_wanted() -> None:
        while not loads.watched:
            time.sleep(0.01)
        loads.say(1, told)

    # However long it takes from one to the next.
    for each in ("WATCHED_S", "OLD_S"):
        monkeypatch.setattr(load, each, 3600.0)
    monkeypatch.setattr(load, "COMES_S", 60.0)
    beside = threading.Thread(target=say_when_wanted)
    beside.start()
    # A first look waits for what the nodes say, and leaves out who is not asked for.
    assert loads.look({}, {1})["ranks"] == {"1": told}
    beside.join()
    assert loads.watched
    monkeypatch.setattr(load, "WATCHED_S", 0.0)
    assert not loads.watched


def test_what_a_node_said_long_ago_is_not_the_present(monkeypatch):
    loads = Loads()
    monkeypatch.setattr(load, "COMES_S", 0.0)
    loads.say(0, load.whole({"cpu": 1.0, "memory": 1}))
    monkeypatch.setattr(load, "OLD_S", -1.0)
    assert loads.look({}, {0})["ranks"] == {}
