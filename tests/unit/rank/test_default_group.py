"""Reinitializing torch.distributed's default group: by a cell that runs again, or in recovery."""

import inspect
import os
import sys
from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.torch import torch_adapter, torch_calls
from rankroom.rank.frameworks.torch.torch_internals import C10D
from rankroom.rank.world import World


class Distributed:
    """A fake torch.distributed that only records how it was initialized."""

    def __init__(self):
        self.made, self.destroyed, self.ports = [], 0, []
        self.module = SimpleNamespace(
            __name__=C10D,
            BackendConfig=lambda backend: f"cpu:{backend}",
            Backend=str,
            GroupMember=SimpleNamespace(WORLD="world"),
            _new_process_group_helper=lambda: None,
            _world=SimpleNamespace(pg_names={"world": "0"}),
            get_backend_config=lambda: f"cpu:{self.made[-1]['backend']}",
            is_backend_available=lambda name: True,
            is_initialized=lambda: self.on,
            init_process_group=self.init_process_group,
            destroy_process_group=self.destroy_process_group,
        )
        self.on = False

    def init_process_group(
        self, backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None,
        group_name="", pg_options=None, device_id=None,
    ):  # fmt: skip
        if self.on:
            raise ValueError("trying to initialize the default process group twice!")
        own = {name: value for name, value in locals().items() if name != "self"}
        self.made.append(own)
        self.ports.append(os.environ.get("MASTER_PORT"))
        self.on = True

    def destroy_process_group(self, group=None):
        self.destroyed += 1
        self.on = False


@pytest.fixture
def dist(monkeypatch):
    made = Distributed()
    monkeypatch.setattr(torch_calls, "guard", lambda module, world: None)
    for name, value in (("_asked", None), ("_fresh", True), ("_released", False)):
        monkeypatch.setattr(torch_adapter, name, value)
    monkeypatch.setitem(sys.modules, C10D, made.module)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    return made


def wrapped(dist):
    """Return `init_process_group` as wrapped for two ranks that always pass the same values."""
    world = World(size=2, rpc="there", present=(0, 1))
    world.gather = lambda topic, value, meeting=None: [value, value]
    torch_adapter._wrap(dist.module, world)
    return dist.module.init_process_group


def test_on_one_rank_a_cell_that_calls_init_process_group_can_run_again(dist, capsys):
    torch_adapter._wrap_alone(dist.module)
    init = dist.module.init_process_group
    init("gloo")
    assert dist.ports == ["1"], "as without Rankroom"
    init("gloo")
    init()
    assert len(dist.made) == 1
    with pytest.raises(ValueError, match="twice"):
        init("gloo", rank=0, world_size=2)
    init("nccl", rank=0, world_size=1)
    assert [each["backend"] for each in dist.made] == ["gloo", "nccl"] and dist.destroyed == 1
    assert dist.ports[1] != "1"
    assert "nccl instead of gloo" in capsys.readouterr().err


def test_init_process_group_accepts_positional_arguments(dist):
    init = wrapped(dist)
    init("gloo", "env://", 5, 2, 0)
    [made] = dist.made
    assert (made["init_method"], made["timeout"], made["world_size"]) == ("env://", 5, 2)
    assert torch_adapter._asked == {"backend": "gloo", "timeout": 5}
    init("gloo", "env://", 5, 2, 0)
    assert len(dist.made) == 1
    with pytest.raises(TypeError, match="bakend"):
        init(bakend="gloo")


def test_the_users_own_store_may_be_a_positional_argument(dist):
    wrapped(dist)("gloo", None, None, 2, 0, "store")
    assert dist.made[0]["store"] == "store" and torch_adapter._asked is None


def test_recovery_repeats_the_arguments_of_init_process_group(dist):
    wrapped(dist)("nccl", init_method="env://", rank=0, world_size=2, device_id=3, pg_options="o")
    state = torch_adapter.state() | {"released": True}
    torch_adapter.settle([state, state])
    again = inspect.signature(dist.init_process_group).bind(**dist.made[1]).arguments
    assert {name: again[name] for name in ("backend", "device_id", "pg_options", "rank")} == {
        "backend": "nccl", "device_id": 3, "pg_options": "o", "rank": -1,
    }  # fmt: skip
    # A restarted rank knows only the backend. No rank passes a device then: with one, ranks connect
    # during initialization, and the restarted rank would not take part.
    restarted = state | {"again": False, "fresh": True, "on": False}
    torch_adapter.settle([state, restarted])
    assert (dist.made[2]["backend"], dist.made[2]["device_id"]) == ("nccl", None)


class Sharded:
    """A stand-in for an FSDP model."""


@pytest.mark.parametrize(
    ("models", "deepspeed", "said"),
    [(0, None, False), (1, None, True), (0, "a backend", True)],
)
def test_users_of_fsdp_or_deepspeed_are_warned_of_a_new_default_group(
    dist, monkeypatch, capsys, models, deepspeed, said
):
    kind = type("FullyShardedDataParallel", (Sharded,), {})
    fsdp = SimpleNamespace(FullyShardedDataParallel=kind)
    there = [kind() for _ in range(models)]
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", fsdp)
    monkeypatch.setitem(sys.modules, "deepspeed.comm.comm", SimpleNamespace(cdb=deepspeed))
    wrapped(dist)("gloo")
    state = torch_adapter.state() | {"released": True}
    torch_adapter.settle([state, state])
    assert len(dist.made) == 2 and len(there) == models
    assert ("FSDP models, DeepSpeed's engines" in capsys.readouterr().err) == said


@pytest.mark.parametrize(
    ("in_script", "own", "seen"),
    [(False, None, "0"), (True, None, None), (False, "3", "3")],
    ids=["in a cell", "in a script", "the user's choice"],
)
def test_nccl_async_error_handling_is_off_in_cells_only(dist, monkeypatch, in_script, own, seen):
    name, found = "TORCH_NCCL_ASYNC_ERROR_HANDLING", []
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)
    monkeypatch.setattr(torch_adapter, "is_in_script", in_script)
    dist.module._new_process_group_helper = lambda: found.append(os.environ.get(name))
    wrapped(dist)
    dist.module._new_process_group_helper()
    assert found == [seen]
    assert os.environ.get(name) == own  # programs that a cell starts are not affected


def test_per_bucket_state_of_powersgd_is_reset_with_the_buckets():
    """PowerSGD's state, which would otherwise make each pass fail.

    Real ranks cannot test this: on two ranks with Gloo, PowerSGD hangs on its own.
    """
    kept = {name: {0: 1} for name in ("error_dict", "p_memory_dict", "q_memory_dict")}
    state = SimpleNamespace(**kept, iter=7, matrix_approximation_rank=1)
    torch_calls._forget_buckets(state)
    assert (state.error_dict, state.p_memory_dict, state.q_memory_dict, state.iter) == (
        {},
        {},
        {},
        0,
    )
    for other in (None, "a state", own := SimpleNamespace(iter=3)):
        torch_calls._forget_buckets(other)
    assert own.iter == 3
