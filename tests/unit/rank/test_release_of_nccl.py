"""A default group that has NCCL, pretended: its collectives run on the device, and are aborted."""

import sys
from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.rank.frameworks.torch.torch_internals import C10D


def backend_config() -> str:
    raise ValueError("Invalid process group specified")


@pytest.mark.parametrize(
    ("backend", "config", "aborted"),
    [
        ("nccl", "cuda:nccl", True),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", True),
        ("undefined", "cuda:nccl", True),  # init_process_group() with nothing in the brackets
        ("undefined", "cpu:gloo", False),
        ("gloo", "cpu:gloo,cuda:gloo", False),
        ("gloo", None, False),  # a group of the user's own that this rank is not in
    ],
)
def test_what_nccl_carries_is_aborted(monkeypatch, backend, config, aborted):
    told = []
    c10d = SimpleNamespace(
        __name__=C10D,
        is_initialized=lambda: True,
        get_backend=lambda: backend,
        get_backend_config=backend_config if config is None else lambda: config,
        _abort_process_group=lambda: told.append("aborted"),
        _world=SimpleNamespace(pg_names={"default": "0", "another": "1"}),
    )
    monkeypatch.setitem(sys.modules, C10D, c10d)
    for name in ("_released", "_lost"):
        monkeypatch.setattr(torch_adapter, name, False)
    assert torch_adapter.release() == ["torch.distributed"]
    assert bool(told) == aborted
    # What an abort ends is not there to be counted when the next cell sets up again.
    assert torch_adapter._lost == aborted
