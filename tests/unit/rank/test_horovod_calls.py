"""Finding the process set of a Horovod call from its arguments; needs no Horovod."""

from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.horovod import process_sets
from rankroom.rank.frameworks.horovod.horovod_calls import Guarded
from rankroom.rank.world import SubsetError, World

# The arguments that horovod.torch passes to its compiled code; "" is the name if none was given.
CALLS = {
    "horovod_torch_allreduce_async_torch_FloatTensor": ("t", "o", 1, "", 1, 1.0, 1.0, 2),
    "horovod_torch_grouped_allreduce_async_torch_FloatTensor": ("t", "o", 1, "", 1, 1.0, 1.0, 2),
    "horovod_torch_allgather_async_torch_FloatTensor": ("t", "o", "", 2),
    "horovod_torch_grouped_allgather_async_torch_FloatTensor": ("t", "o", "", 2),
    "horovod_torch_broadcast_async_torch_FloatTensor": ("t", "o", 0, "", 2),
    "horovod_torch_alltoall_async_torch_FloatTensor": ("t", None, "o", "o", "", 2),
    "horovod_torch_reducescatter_async_torch_FloatTensor": ("t", "o", "", 1, 2, 1.0, 1.0),
    "horovod_torch_grouped_reducescatter_async_torch_FloatTensor": ("t", "o", "", 1, 2, 1.0, 1.0),
    "horovod_torch_barrier": (2,),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_named_and_refused_according_to_its_process_set(monkeypatch, name):
    asked = []

    def members(library, number, size):
        asked.append(number)
        return [0] if number == 2 else [0, 1]

    monkeypatch.setattr(process_sets, "members", members)
    called = []
    module = SimpleNamespace(**{name: lambda *args: called.append(args)})
    guarded = Guarded(module, "torch", World(size=2, present=(0,), run="r"))
    getattr(guarded, name)(*CALLS[name])
    assert asked == [2] and len(called) == 1
    assert dict(guarded._named) in ({}, {2: 1})
    of_all = tuple(0 if type(each) is int and each == 2 else each for each in CALLS[name])
    with pytest.raises(SubsetError):
        getattr(guarded, name)(*of_all)
