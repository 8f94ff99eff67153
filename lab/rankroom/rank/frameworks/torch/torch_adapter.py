"""torch.distributed on a rank: initialised by environment, released, and set up again.

A blocked Gloo collective ends when its connections do, and only then: destroying the group waits
for what still holds it (a DDP model does). So the sockets a group opens are noted, and closing
them releases this rank and its peers at once, from any thread.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import socket
import sys
import threading
import urllib.parse
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from rankroom.rank import open_ports, sockets
from rankroom.rank.frameworks.torch import (
    torch_calls,
    torch_compile,
    torch_connecting,
    torch_ddp_group,
    torch_device,
    torch_internals,
    torch_spans,
    torch_steps,
    torch_works,
)
from rankroom.rank.frameworks.torch.torch_internals import C10D
from rankroom.rank.import_hooks import when_imported, with_own_symbols
from rankroom.rank.world import World, named, restore_environment
from rankroom.reporting.spans import recorder
from rankroom.system import network

TOPIC = "dist.init_process_group()"
_WIRING = ("init_method", "store", "rank", "world_size")  # holds for one set-up only
_WITH_RESTARTED = ("backend", "timeout")  # what can be kept beside a rank that was restarted
ABORT_S = 2.0  # for NCCL to give up what runs on the GPU
ABORTED_S = 10.0  # for that, before this rank is given up
# Of its own accord NCCL's group ends the process of a rank that has waited for ten minutes, or that
# another has left; in a cell, that would cost all variables of this one.
_IN_CELLS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}

_sockets: list[sockets.Socket] = []  # the present groups' connections
# torch's Gloo ends the process where it cannot listen any more.
_connecting = sockets.Connecting(listening=False)
_models: weakref.WeakSet[Any] = weakref.WeakSet()  # DistributedDataParallel on the default group
_asked: dict[str, Any] | None = None  # what the present default group was initialised with
_released = False
_made_for: int | None = None  # the size of the world that the present default group is of
_world: World | None = None
_aborting: threading.Thread | None = None  # the last abort of NCCL's collectives
_lost = False  # groups went with it that are not made again
is_in_script = False  # which ends as torchrun would have it end
_fresh = True  # this rank has never had a default group: one that was restarted, perhaps


def environment(
    rank: int, size: int, local_rank: int, local_size: int, node: int, nodes: int,
    address: str, port: int, interface: str,
) -> dict[str, str]:  # fmt: skip
    """What a rank finds under torchrun.

    `init_process_group()` and DeepSpeed read the first five; Lightning begins no processes of its
    own, and takes no job's number of tasks for that of ranks, where it finds torchrun's others.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "TORCHELASTIC_RUN_ID": "rankroom",
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,  # of torch.distributed.rpc, which unpickles what comes
    }


def install(world: World) -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    global _world
    _world = world
    torch_compile.install()
    torch_steps.install()
    # TensorFlow exports its LLVM to all libraries that are loaded later; triton has one of its own.
    with_own_symbols("triton._C.libtriton")
    if world.size > 1:
        torch_device.install()
        when_imported(C10D, lambda module: _wrap(module, world))
        torch_calls.install(world, _models)
    else:
        when_imported(C10D, _wrap_alone)


def release() -> list[str]:
    """Let go of every blocked collective, from any thread: the connections of all groups end.

    The groups are useless afterwards; `settle` replaces them.
    """
    global _released, _lost
    c10d = sys.modules.get(C10D)
    is_connecting = _connecting.break_off()
    if c10d is None or not (is_connecting or _sockets or c10d.is_initialized()):
        return []
    _released = True
    sockets.break_off(_sockets)
    # NCCL's collectives run on the device and end by its own means only.
    if c10d.is_initialized() and torch_internals.uses_nccl(c10d):
        torch_connecting.give_up()
        torch_device.forget()
        _lost |= len(torch_internals.group_names(c10d)) > 1
        if not _abort(c10d):
            return []
    return ["torch.distributed"]


def _abort(c10d: Any) -> bool:
    """Have NCCL give up what runs on the device, which may take longer; False if it cannot."""
    global _aborting
    if not torch_internals.aborts(c10d):
        return False
    if _aborting is None or not _aborting.is_alive():
        # A driver that is stuck must not keep all else from being released.
        _aborting = threading.Thread(target=torch_internals.abort, args=(c10d,), daemon=True)
        _aborting.start()
    _aborting.join(ABORT_S)
    return True


def is_cut_off() -> bool:
    """Whether a release will end what this rank's GPU is at. No call of the cell fails by that: it
    would go on with whatever is there."""
    c10d = sys.modules.get(C10D)
    if c10d is None or _world is None or not c10d.is_initialized():
        return False
    if not (torch_internals.uses_nccl(c10d) and torch_internals.aborts(c10d)):
        return False
    if torch_device.is_in_collective() or torch_works.goes_on() or torch_spans.is_awaited():
        return True
    # What it does else is the cell's own, unless some of its collectives were not followed.
    return not torch_device.sees_all() and torch_device.is_busy(_world.device)


def finish() -> None:
    """A cell is over: what still goes on is seen to end. It must not keep the cell from ending."""
    for end in (torch_ddp_group.finish, torch_works.finish, torch_device.finish):
        try:
            end()
        except Exception as error:
            recorder.note(f"the last spans of torch.distributed are missing: {error!r}")


def state() -> dict[str, Any]:
    """What ranks compare after a cell that failed somewhere; empty if this one never used torch.

    Each group counts its collectives, DDP's included: unequal counts mean ranks out of step.
    """
    c10d: Any = sys.modules.get(C10D)
    if c10d is None:
        return {}
    groups = {}
    if c10d.is_initialized():
        for group, name in list(torch_internals.group_names(c10d).items()):
            groups[str(name)] = torch_internals.collectives_so_far(c10d, group)
    if _aborting is not None:
        _aborting.join(ABORTED_S)
    return {
        "stuck": _aborting is not None and _aborting.is_alive(),
        "on": bool(c10d.is_initialized()),
        "again": _asked is not None,
        "backend": str(_asked["backend"]) if _asked and "backend" in _asked else None,
        "fresh": _fresh,
        "left": torch_ddp_group.left,
        # A group for another world is of as little use as one that was released.
        "released": _released or (c10d.is_initialized() and _made_for not in (None, _size())),
        "groups": groups,
    }


def _size() -> int:
    return _world.size if _world is not None else 1


def _is_copy() -> bool:
    """Whether this process was forked from the rank: the groups it makes are its own."""
    return _world is not None and _world.is_copy


def settle(states: list[dict[str, Any]]) -> None:
    """Set up again what the ranks' `states` show to be released or out of step."""
    global _released, _lost
    if stuck := [rank for rank, each in enumerate(states) if each.get("stuck")]:
        raise RuntimeError(_stuck(stuck))
    c10d: Any = sys.modules.get(C10D)
    was_left = any(each.get("left") for each in states)
    torch_ddp_group.left = False
    if not any(states) or in_step(states):
        if was_left and c10d is not None and c10d.is_initialized():
            _revive()  # a reducer would wait for the gradients of the pass that was left
        return
    # All at once: in the middle of this no rank may raise, as the others would wait for it.
    again, lost = _asked, _lost
    _lost = False
    if c10d is not None:
        if c10d.is_initialized():
            lost |= len(torch_internals.group_names(c10d)) > 1
            _end_groups(c10d)
        lost |= torch_internals.groups_are_kept()
        torch_internals.forget_groups_of_deepspeed()
    _released = False
    asked = [each for each in states if each and each["again"]]
    if not asked or not all(each and (each["again"] or each["fresh"]) for each in states):
        return
    if again is None:
        again = {"backend": asked[0]["backend"]}
    if len(asked) < len(states):
        # A rank takes the place of one that had the group, and does not know what else was asked.
        again = {name: again[name] for name in _WITH_RESTARTED if name in again}
    c10d.init_process_group(**again)
    _revive()
    if lost:
        print(GROUPS_LOST, file=sys.stderr)


def _revive() -> None:
    """Give all DDP models new reducers. One that torch refuses keeps none of the others from it."""
    for model in list(_models):
        try:
            torch_calls.revive(model)
        except Exception as error:
            print(NOT_REVIVED.format(error=error), file=sys.stderr)


def _end_groups(c10d: Any) -> None:
    """Have all groups be gone. To destroy NCCL's waits for what runs on the GPU, for ever if others
    do not join in that: it is aborted. Raises RuntimeError if that takes too long."""
    global _asked
    if torch_internals.uses_nccl(c10d) and _abort(c10d):
        if _aborting is not None:
            _aborting.join(ABORTED_S)
            if _aborting.is_alive():
                raise RuntimeError(_stuck([_world.rank if _world is not None else 0]))
        _asked = None
        _sockets.clear()
    if c10d.is_initialized():
        with contextlib.suppress(ValueError):  # of one that was aborted, and is kept
            c10d.destroy_process_group()


def _stuck(ranks: list[int]) -> str:
    """That NCCL still runs on the GPUs of these ranks, and what helps."""
    return STUCK.format(whose=named(ranks), ranks=",".join(map(str, ranks)))


def set_aside() -> Any:
    """The world changes for a cell. Returns what all ranks had asked for."""
    return _asked, _fresh


def put_back(kept: Any) -> None:
    """The world is whole again: what all ranks had asked for counts."""
    global _asked, _fresh
    _asked, _fresh = kept


def in_step(states: list[dict[str, Any]]) -> bool:
    """True if no rank has released its groups, and all count the same in the groups they share."""
    present = [each for each in states if each]
    if any(each["released"] for each in present) or len({each["on"] for each in present}) > 1:
        return False
    if len(present) < len(states):
        return not any(each["on"] for each in present)
    counts: dict[str, set[int]] = {}
    for each in present:
        for name, count in each["groups"].items():
            counts.setdefault(name, set()).add(count)
    return all(len(each) == 1 for each in counts.values())


def _wrap(module: Any, world: World) -> None:
    torch_calls.guard(module, world)
    original = module.init_process_group
    destroy = module.destroy_process_group
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        global _asked, _fresh, _made_for
        given = signature.bind(*args, **kwargs).arguments
        is_own = _is_copy() or given.get("store") is not None
        if is_own or not _is_size(given, world.size):
            # The user's own wiring, perhaps of some ranks only: none of our business.
            _made_for = None
            return original(*args, **kwargs)
        if world.partial:
            if module.is_initialized():
                return None
            raise world.refuse("dist.init_process_group()", "Call it in a cell on all ranks.")
        instead = _instead(module, given.get("backend"))
        mine = {"on": module.is_initialized() and not _released and not instead}
        if world.rank == 0:
            mine |= {
                "address": _own_address(os.environ.get("MASTER_ADDR") or network.LOOPBACK),
                "method": _own_method(given.get("init_method")),
                "port": _free_port(),
            }
        ranks = world.gather(TOPIC, mine)
        if all(each["on"] for each in ranks):
            # The cell that did this ran again.
            return None
        if module.is_initialized():
            if instead and torch_internals.uses_nccl(module):
                # Nothing is wrong with what still goes on.
                torch_device.let_end(world.device, ABORT_S)
            _end_groups(module)
            if instead:
                print(SET_UP_AGAIN.format(instead=instead), file=sys.stderr)
        call = signature.bind(*args, **kwargs)
        if ranks[0]["method"] and given.get("init_method"):
            call.arguments["init_method"] = ranks[0]["method"]
        torch_internals.count_groups_anew(module)
        check = functools.partial(world.check_meeting, TOPIC, world.meeting)
        with _master(ranks[0]["address"], ranks[0]["port"]), _connecting.noting(_sockets, check):
            result = original(*call.args, **call.kwargs)
        _asked = {
            name: value
            for name, value in given.items()
            if name not in _WIRING and value is not None
        }
        _fresh = False
        _made_for = world.size
        open_ports.tell("torch.distributed")
        return result

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> Any:
        global _asked
        if group is None or group == module.GroupMember.WORLD:
            _asked = None
            _sockets.clear()
        return destroy(group)

    def noting_sockets(make: Any) -> Any:
        @functools.wraps(make)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            own = {name: os.environ.get(name) for name in _IN_CELLS}
            if not (is_in_script or _is_copy()):
                os.environ.update({name: _IN_CELLS[name] for name in own if own[name] is None})
            try:
                with torch_connecting.making(), sockets.noting(_sockets):
                    return make(*args, **kwargs)
            finally:
                restore_environment(own)

        return make_group

    module.init_process_group = init_process_group
    module.destroy_process_group = destroy_process_group
    torch_internals.patch(module, "_new_process_group_helper", noting_sockets)
    if hasattr(module, "split_group"):  # which makes one in C++
        module.split_group = noting_sockets(module.split_group)


def _wrap_alone(module: Any) -> None:
    """The only rank agrees with no other, but its cell can run again, too."""
    original = module.init_process_group
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        global _released
        given = signature.bind(*args, **kwargs).arguments
        if _is_copy() or not module.is_initialized() or not _is_size(given, 1):
            return original(*args, **kwargs)
        instead = _instead(module, given.get("backend"))
        if not instead and not _released:
            return None
        module.destroy_process_group()
        _released = False
        if instead:
            print(SET_UP_AGAIN.format(instead=instead), file=sys.stderr)
        with _master(os.environ.get("MASTER_ADDR", "127.0.0.1"), _free_port()):
            return original(*args, **kwargs)

    module.init_process_group = init_process_group


def _is_size(given: Mapping[str, Any], size: int) -> bool:
    """Whether the arguments of `init_process_group` mean a world of so many ranks."""
    return given.get("world_size", -1) in (-1, None, size)


def _instead(module: Any, backend: Any) -> str:
    """`nccl instead of gloo` where the default group that is up has other backends than asked for.

    Raises RuntimeError where this PyTorch has no such backend, while that group is kept.
    """
    if not module.is_initialized():
        return ""
    asked, used = torch_internals.backends_asked_for(module, backend), {}
    with contextlib.suppress(ValueError):  # the group is another's
        used = torch_internals.backends_in_use(module)
    other = {device: name for device, name in asked.items() if used.get(device) != name}
    for name in other.values():
        if not module.is_backend_available(name):
            raise RuntimeError(NOT_THERE.format(name=name))
    before = {used[device] for device in other if device in used}
    words = " instead of " + ", ".join(sorted(before)) if before else " as well"
    return ", ".join(sorted(set(other.values()))) + words if other else ""


@contextlib.contextmanager
def _master(address: str, port: int) -> Iterator[None]:
    """A store that has not been used: torch's cannot be used twice while anything of it lives."""
    own = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    try:
        yield
    finally:
        restore_environment(own)


def _own_address(host: str) -> str:
    """Where the others reach a store of this rank's at `host`, which may be any name or address of
    this machine: it listens on one of them only."""
    bound = os.environ.get("RANKROOM_BIND")
    return network.bound_address(host, bound) if bound else host


def _own_method(method: Any) -> str | None:
    """An `init_method` over TCP with that address; None where it stays as it is."""
    if not isinstance(method, str) or not method.startswith("tcp://"):
        return None
    try:
        parts = urllib.parse.urlsplit(method)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # torch says what is wrong with it
        return None
    own = _own_address(host)
    return None if own == host else parts._replace(netloc=f"{own}:{port}").geturl()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


STUCK = (
    "NCCL did not abort what runs on the GPU of {whose}: "
    "`%cluster restart --ranks {ranks}` frees it"
)
NOT_THERE = (
    "this PyTorch has no backend {name!r}; torch.distributed stays up as it was set up before"
)
SET_UP_AGAIN = (
    "torch.distributed is set up again, with {instead}: what used it before, DDP and FSDP models, "
    "DeepSpeed's engines and groups of dist.new_group, has to be made again"
)
NOT_REVIVED = "a DDP model does not work any more: make it again ({error})"
GROUPS_LOST = (
    "torch.distributed was set up again after the failed cell. The default group works, and so do "
    "DDP models on it; FSDP models, DeepSpeed's engines and groups made with dist.new_group are "
    "gone: run the cell that made them."
)
