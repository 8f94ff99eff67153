"""Which torch.distributed calls are followed on a simulated GPU, and until when."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from pretended_gpu import Event, pretend
from rankroom.rank.frameworks.torch import (
    torch_adapter,
    torch_calls,
    torch_compile,
    torch_connecting,
    torch_ddp,
    torch_ddp_group,
    torch_device,
    torch_internals,
    torch_spans,
    torch_works,
)
from rankroom.rank.frameworks.torch.torch_internals import C10D
from rankroom.rank.world import ReleasedError, World
from rankroom.reporting import spans

TENSOR = SimpleNamespace(is_cuda=True, device="cuda:1")


class Backend:
    def __init__(self, name):
        self.name = lambda: name


class Group:
    """A process group that counts its collectives, unless `counted` is None."""

    def __init__(self, backend="nccl", counted=0):
        self.counted = counted
        self._device_types = ["cuda"]
        self._get_backend = lambda device: Backend(backend)

    def _get_sequence_number_for_group(self):
        if self.counted is None:
            raise RuntimeError("ProcessGroup undefined does not yet support sequence numbers.")
        return self.counted


@pytest.fixture
def cuda(monkeypatch):
    yield from pretend(monkeypatch)


@pytest.fixture
def c10d(cuda, monkeypatch):
    class Work:
        def wait(self):
            return True

        def is_completed(self):
            return False

    world = Group()
    module = ModuleType(C10D)
    vars(module).update(
        GroupMember=SimpleNamespace(NON_GROUP_MEMBER=object(), WORLD=world),
        ProcessGroup=Group(),
        Work=Work,
        _world=SimpleNamespace(pg_names={}, pg_coalesce_state={}),
        get_backend_config=lambda: "cuda:nccl",
        get_process_group_ranks=lambda group: [0, 1],
        isend=lambda tensor, dst=None, group=None: None,
        batch_isend_irecv=lambda p2p_op_list: [Work()],
    )
    monkeypatch.setitem(sys.modules, C10D, module)
    monkeypatch.setattr(torch_connecting, "connected", set())
    monkeypatch.setattr(torch_spans, "_run", "")
    monkeypatch.setattr(spans.recorder, "number", lambda key, define: 7)
    torch_calls.guard(module, World(size=2, run="r", present=(0, 1)))
    return module


def operation(c10d, name="all_reduce", *parameters):
    parameters = parameters or ("tensor", "op", "group", "async_op")
    return torch_spans.Operation(name, list(parameters), c10d, World(size=2, run="r"))


def followed():
    return [each.what for each in torch_device._followed]


def test_a_collective_lasts_until_the_gpu_has_completed_it(c10d):
    operation(c10d)(lambda *args: None, (TENSOR,), {})
    assert followed() == ["dist.all_reduce #1"] and torch_device.is_in_collective()
    Event.at = Event.recorded
    assert not torch_device.is_in_collective()


def test_a_call_that_returns_a_value_is_followed_too(c10d, cuda):
    """`dist.recv` returns the sender's rank."""
    recv = operation(c10d, "recv", "tensor", "src", "group")
    assert recv(lambda *args: 3, (TENSOR, 3), {}) == 3
    assert followed() == ["dist.recv #1"]
    assert cuda.added == []  # its span is measured on the GPU


def test_an_async_collective_is_followed_once_it_is_waited_for(c10d):
    work = operation(c10d)(lambda *args: c10d.Work(), (TENSOR,), {})
    assert followed() == [] and torch_works.goes_on()
    work.wait()
    assert followed() == ["dist.all_reduce #1"] and not torch_works.goes_on()


def test_a_collective_without_tensors_is_followed_if_its_group_uses_nccl(c10d):
    barrier = operation(c10d, "barrier", "group", "async_op")
    barrier(lambda *args: None, (), {})
    assert followed() == ["dist.barrier #1"]
    on_cpu = Group("gloo")
    c10d._world.pg_names[on_cpu] = "1"
    barrier(lambda *args: None, (on_cpu,), {})
    barrier(lambda group: None, (), {"group": on_cpu})
    assert followed() == ["dist.barrier #1"]


def test_a_coalesced_call_is_followed_when_its_work_is_waited_for(c10d):
    group = c10d.GroupMember.WORLD
    c10d._world.pg_coalesce_state[group] = []
    operation(c10d, "isend", "tensor", "dst", "group")(lambda *args: None, (TENSOR, 1), {})
    assert followed() == []
    del c10d._world.pg_coalesce_state[group]
    c10d.Work().wait()
    assert followed() == ["dist.Work.wait"]


def test_a_p2p_batch_is_pending_until_it_is_waited_for(c10d):
    [work] = c10d.batch_isend_irecv([SimpleNamespace(tensor=TENSOR, peer=1)])
    assert torch_works.goes_on()
    work.wait()
    assert followed() == ["dist.batch_isend_irecv"] and not torch_works.goes_on()


def test_without_a_gpu_waiting_for_an_unknown_work_is_unchanged(c10d, cuda):
    cuda.is_initialized = lambda: False
    assert c10d.Work().wait()
    assert Event.recorded == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ReleasedError("the others do not join")])
def test_an_interrupted_or_released_call_does_not_hide_the_next_one(c10d, monkeypatch, error):
    def comes(device):
        raise error

    monkeypatch.setattr(torch_device, "begin", comes)
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        operation(c10d)(pytest.fail, (TENSOR,), {})
    assert not torch_works.thread.inside


def test_ranks_may_connect_only_in_the_first_call_of_a_group_or_pair(c10d, monkeypatch):
    seen = []

    def function(*args):
        seen.append(torch_connecting._before is not None)

    called = operation(c10d)
    for _ in range(2):
        called(function, (TENSOR,), {})
    assert seen == [True, False]
    send = operation(c10d, "send", "tensor", "dst", "group")
    for peer in (1, 1, 2):  # NCCL has a communicator for each pair
        send(function, (TENSOR, peer), {})
    assert seen[2:] == [True, False, True]


class Model:
    """A DDP model whose group counts its collectives, unless `counted` is None."""

    require_backward_grad_sync = True

    def __init__(self, counted: "int | None" = 0) -> None:
        self.process_group = Group(counted=counted)
        self.parameters = list


class Loss:
    is_cuda, device, grad_fn = True, "cuda:1", "a function"

    def __init__(self):
        self.hooks = []

    def register_hook(self, hook):
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))


@pytest.fixture
def queued(cuda, monkeypatch):
    """The callbacks for the end of a backward pass."""
    found = []
    engine = SimpleNamespace(queue_callback=found.append)
    variable = SimpleNamespace(_execution_engine=engine)
    sys.modules["torch"].autograd = SimpleNamespace(Variable=variable)
    monkeypatch.setattr(torch_ddp_group, "_passes", 0)
    return found


@pytest.fixture
def models(monkeypatch):
    made: list[Model] = []
    monkeypatch.setattr(torch_ddp_group, "on_gpu", made)
    return made


def backward(does=lambda: None):
    """Run a backward pass that calls its hooks, then `does`."""

    def original(loss):
        for hook in loss.hooks:
            hook("a gradient")
        does()

    torch_ddp_group.watched_backward(original)(Loss())


def test_a_backward_pass_that_averages_gradients_is_followed(c10d, queued, models):
    models.append(Model())

    def averages():
        assert not torch_device.is_in_collective()  # the GPU was given none yet
        models[0].process_group.counted += 1
        assert torch_device.is_in_collective()

    backward(averages)
    assert followed() == [torch_ddp_group.GRADIENT_ALLREDUCE] and len(queued) == 1
    assert torch_device.sees_all()


def test_a_backward_pass_of_another_model_is_not_followed(c10d, queued, models):
    models.append(Model())
    backward()
    assert followed() == [] and torch_device.sees_all()
    assert not torch_device.is_in_collective()
    models[0].process_group.counted = None  # without a count, it may have averaged
    backward()
    assert followed() == [torch_ddp_group.GRADIENT_ALLREDUCE]


def test_a_backward_pass_that_fails_after_a_collective_is_followed(c10d, queued, models):
    models.append(Model())

    def fails():
        models[0].process_group.counted += 1
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        backward(fails)
    assert torch_device.is_in_collective() and not torch_device._begun
    with pytest.raises(ZeroDivisionError):
        backward(lambda: 1 / 0)
    assert len(followed()) == 1 and not torch_device._begun


def test_a_release_at_the_start_of_a_backward_pass_ends_it(c10d, queued, models, monkeypatch):
    def released(*args):
        raise ReleasedError("the others do not join")

    models.append(Model())
    monkeypatch.setattr(Loss, "register_hook", released)
    with pytest.raises(ReleasedError):
        backward(pytest.fail)
    assert torch_ddp_group._passes == 0 and not torch_device._begun


def test_a_backward_pass_succeeds_if_no_callback_can_be_queued(c10d, queued, models):
    def full(again):
        raise RuntimeError("Final callbacks can only be installed during backward pass.")

    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback = full
    models.append(Model())
    backward()


@pytest.mark.parametrize("name", ["compiled_autograd_enabled", "compiled_autograd_enabled_count"])
def test_nothing_is_hooked_into_a_pass_that_is_compiled(c10d, queued, models, monkeypatch, name):
    compiled = SimpleNamespace(**{name: 1})
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", compiled)
    models.append(Model())

    def averages():
        models[0].process_group.counted += 1

    backward(averages)
    assert followed() == [] and queued == []
    assert not torch_device.sees_all()
    setattr(compiled, name, 0)
    backward(averages)
    assert len(followed()) == 1


def test_the_collectives_that_construct_a_ddp_model_are_followed(c10d):
    def shapes(process_group, tensors, logger=None):
        assert torch_device.is_in_collective() and torch_connecting._before is not None

    torch_ddp._watched_making(shapes, "shapes")(None, [TENSOR])
    assert followed() == ["DistributedDataParallel()"]

    def parameters(module, process_group):
        assert torch_connecting._before is None  # the ranks have connected by now

    model = SimpleNamespace(parameters=lambda: iter([TENSOR]))
    torch_ddp._watched_making(parameters, "parameters")(model, process_group=None)
    assert len(followed()) == 2


def test_constructing_a_ddp_model_on_the_cpu_adds_a_span(c10d, cuda):
    tensor = SimpleNamespace(is_cuda=False)
    torch_ddp._watched_making(lambda process_group, tensors: None, "shapes")(None, [tensor])
    assert followed() == [] and [span[:2] for span in cuda.added] == [("collective", 7)]


def test_modules_that_query_a_gpu_are_excluded_from_tracing():
    for module in (torch_connecting, torch_ddp_group, torch_device, torch_spans, torch_works):
        assert module.__name__ in torch_compile._UNTRACED_MODULES


def test_nccl_async_error_handling_is_off_while_a_group_is_split(c10d, monkeypatch):
    name, found = "TORCH_NCCL_ASYNC_ERROR_HANDLING", []
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch_calls, "guard", lambda module, world: None)
    vars(c10d).update(
        init_process_group=lambda: None,
        destroy_process_group=lambda: None,
        _new_process_group_helper=lambda: None,
        split_group=lambda *args: found.append((args, os.environ.get(name))),
    )
    torch_adapter._wrap(c10d, World(size=2))
    c10d.split_group("of a mesh")
    assert found == [(("of a mesh",), "0")] and name not in os.environ


def test_the_collective_count_is_none_for_a_group_that_keeps_none(c10d):
    assert torch_internals.counted(c10d, Group(counted=3)) == 3
    assert torch_internals.counted(c10d, Group(counted=None)) is None
    assert torch_internals.collectives_so_far(c10d, Group(counted=None)) == 0

    def released():
        raise ReleasedError("the others do not join")

    group = SimpleNamespace(_get_sequence_number_for_group=released)
    with pytest.raises(ReleasedError):
        torch_internals.counted(c10d, group)


ON_CPU = """
from rankroom.rank.frameworks.torch import torch_adapter, torch_connecting, torch_device
from rankroom.rank.world import World
from rankroom.reporting.spans import recorder
torch_adapter.install(World(size=2, present=(0, 1), run="r"))
recorder.begin()
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
one = torch.ones(1)
dist.all_reduce(one)
work = dist.all_reduce(one, async_op=True)
work.wait()
dist.barrier()
objects = [None]
dist.all_gather_object(objects, "mine")
total = functional.all_reduce(one, "sum", dist.group.WORLD) + 1
net = torch.nn.Linear(2, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
assert objects == ["mine"] and total.tolist() == [2.0] and net.weight.grad is not None
assert not torch_device._followed and not torch_device._begun and not torch_device._failed
assert not torch_adapter.is_cut_off() and torch_connecting._before is None
assert sorted(torch_connecting.connected, key=str) == [((None, ""), True)]
graph = torch.cuda.CUDAGraph
assert graph.capture_begin.__module__ == "torch.cuda.graphs"  # as it is wrapped, and looks
assert graph.capture_begin.__wrapped__ and graph.capture_end.__wrapped__
taken = [fields for fields in recorder.take(0) if fields["cat"] == "collective"]
names = [each["name"] for fields in taken for each in fields["define"]]
print(*sorted(name for name in names if "#" in name), sep="\\n")
print(*recorder.new_notes(), sep="\\n")
dist.destroy_process_group()
"""


def test_on_the_cpu_collectives_are_recorded_but_not_followed():
    done = subprocess.run([sys.executable, "-c", ON_CPU], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-2] == [
        "all_gather_object #1", "all_reduce #1", "all_reduce #2", "all_reduce #3", "barrier #1",
    ], done.stdout  # fmt: skip
    assert done.stdout.endswith("\n\n")  # no notes
