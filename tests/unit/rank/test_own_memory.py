"""The memory that `%ranks who` shows: a rank's own, and how much of it the variables hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from eight_gpus import pretend_gpus
from rankroom.display.variable_table import memory_table
from rankroom.rank.own_memory import OwnMemory, _unshared, own_memory, sizes

MB = 1 << 20


class Unsayable:
    """A user's class of which no method may be called."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def __iter__(self) -> Any:
        raise AssertionError


def total(*values: Any) -> int:
    return sum(sizes(values).values())


def test_a_storage_shared_by_several_variables_counts_once():
    import torch

    tensor = torch.zeros(1000)
    assert total(tensor, tensor[:10], [tensor.view(10, 100)], {"x": (tensor.detach(),)}) == 4000
    array = np.zeros(1000)
    assert total(array, array[::2], array.reshape(10, 100)) == 8000
    assert total(torch.from_numpy(array), array) == 8000
    assert total(tensor.numpy(), tensor) == 4000
    assert total(np.zeros(0), torch.zeros(0), torch.zeros(5, device="meta")) == 0


def test_a_networks_gradients_and_optimizer_state_are_counted():
    import torch

    net = torch.nn.Linear(10, 10, bias=False)
    assert total(net, net.weight) == 400
    net(torch.zeros(1, 10)).sum().backward()
    assert total(net) == 800
    optimizer = torch.optim.Adam(net.parameters())
    optimizer.step()
    assert total(net, optimizer) == pytest.approx(1600, abs=8)  # two moments and a step count


def test_only_objects_of_known_types_are_inspected():
    deep: list[Any] = []
    deep.append(deep)
    assert total(Unsayable(), [Unsayable()], deep, "text", 3, None) == 0


def test_the_memory_of_this_process_is_measured():
    block = np.ones(32 * MB, np.uint8)
    found = own_memory([block], "cpu")
    assert found.named == 32 * MB and found.device == "cpu" and found.used is None
    assert found.resident >= psutil.Process(os.getpid()).memory_info().rss * 0.9
    assert found.unshared is None or 32 * MB < found.unshared <= found.resident


def test_unshared_memory_is_read_from_smaps_rollup_or_unknown(tmp_path: Path):
    assert _unshared(tmp_path / "none") is None
    said = tmp_path / "smaps_rollup"
    said.write_text("0-f [rollup]\nRss: 90 kB\nPrivate_Clean:   8 kB\nPrivate_Dirty:  20 kB\n")
    assert _unshared(said) == 28 * 1024


def test_the_memory_of_the_ranks_gpu_is_measured(monkeypatch: pytest.MonkeyPatch):
    import torch

    pretend_gpus(monkeypatch, "2,5")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda number: 100 + number)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: 200 + number)
    found = own_memory([], "cuda:1")
    assert (found.allocated, found.reserved, found.used, found.total) == (
        101,
        201,
        6 << 30,
        80 << 30,
    )


def test_the_table_has_gpus_only_where_there_are_some():
    here = OwnMemory(500 * 10**6, None, 10**6)
    made = memory_table({1: here, 0: here._replace(unshared=0)})
    assert made.head == ["memory of rank", "in all", "unshared", "in these names"]
    assert made.rows == [["0", "500.0 MB", "0 B", "1.0 MB"], ["1", "500.0 MB", "–", "1.0 MB"]]
    there = here._replace(device="cuda:0", allocated=5, reserved=7, used=10**9, total=8 * 10**9)
    assert memory_table({0: here, 1: there}).rows[1][4:] == [
        "cuda:0", "0 B", "5 B", "7 B", "1.0 GB", "8.0 GB"
    ]  # fmt: skip
