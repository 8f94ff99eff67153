"""torch.distributed on a rank: initialized from the environment, released, and set up again.

A blocked Gloo collective ends when its connections do, and only then: destroying the group waits
for whatever still holds it, such as a DDP model. So the sockets that a group opens are noted;
closing them, from any thread, releases this rank and its peers at once.
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

INIT_TOPIC = "dist.init_process_group()"
_SINGLE_USE_ARGUMENTS = (
    "init_method",
    "store",
    "rank",
    "world_size",
)  # valid for one initialization only
_ARGUMENTS_AFTER_RESTART = ("backend", "timeout")  # kept if a rank was restarted
NCCL_ABORT_TIMEOUT_S = 2.0  # for NCCL to abort what is running on the GPU
NCCL_STUCK_TIMEOUT_S = 10.0  # the same, before this rank counts as stuck
# By default, NCCL's process group ends the process of a rank that has waited for ten minutes, or
# that a peer has left; in a cell, all variables of this rank would be lost.
_NCCL_VARIABLES_IN_CELLS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}

_sockets: list[sockets.Socket] = []  # connections of the current groups
# torch's Gloo ends the process if a socket on which it listens is closed.
_connecting = sockets.Connecting(listening=False)
_models: weakref.WeakSet[Any] = weakref.WeakSet()  # DistributedDataParallel on the default group
_asked: dict[str, Any] | None = None  # arguments of the current default group
_released = False
_made_for: int | None = None  # the size of the world of the current default group
_world: World | None = None
_aborting: threading.Thread | None = None  # the last abort of NCCL's collectives
_lost = False  # True if an abort ended groups that are not made again
is_in_script = False  # True in a script, which ends as under torchrun
_fresh = True  # True until this rank has a default group: it may have been restarted


def environment(
    rank: int, size: int, local_rank: int, local_size: int, node: int, nodes: int,
    address: str, port: int, interface: str,
) -> dict[str, str]:  # fmt: skip
    """Return the variables that torchrun would set.

    `init_process_group()` and DeepSpeed read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
    MASTER_PORT. Because of the others, Lightning starts no processes of its own, and does not take
    the number of a job's tasks for that of ranks.
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
        "TP_SOCKET_IFNAME": interface,  # of torch.distributed.rpc, which unpickles what it receives
    }


def install(world: World) -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    global _world
    _world = world
    torch_compile.install()
    torch_steps.install()
    # TensorFlow exports its LLVM to all libraries loaded later; triton has an LLVM of its own.
    with_own_symbols("triton._C.libtriton")
    if world.size > 1:
        torch_device.install()
        when_imported(C10D, lambda module: _wrap(module, world))
        torch_calls.install(world, _models)
    else:
        when_imported(C10D, _wrap_alone)


def release() -> list[str]:
    """Release every blocked collective by closing all groups' connections; called from any thread.

    The groups are unusable afterwards; `settle` replaces them. Returns what was released.
    """
    global _released, _lost
    c10d = sys.modules.get(C10D)
    is_connecting = _connecting.break_off()
    if c10d is None or not (is_connecting or _sockets or c10d.is_initialized()):
        return []
    _released = True
    sockets.break_off(_sockets)
    # NCCL's collectives run on the GPU, and only NCCL itself can end them.
    if c10d.is_initialized() and torch_internals.uses_nccl(c10d):
        torch_connecting.give_up()
        torch_device.forget()
        _lost |= len(torch_internals.group_names(c10d)) > 1
        if not _abort(c10d):
            return []
    return ["torch.distributed"]


def _abort(c10d: Any) -> bool:
    """Abort what NCCL runs on the GPU, waiting for at most NCCL_ABORT_TIMEOUT_S; return False if
    NCCL cannot."""
    global _aborting
    if not torch_internals.aborts(c10d):
        return False
    if _aborting is None or not _aborting.is_alive():
        # In a thread: a driver that is stuck must not keep the rest from being released.
        _aborting = threading.Thread(target=torch_internals.abort, args=(c10d,), daemon=True)
        _aborting.start()
    _aborting.join(NCCL_ABORT_TIMEOUT_S)
    return True


def is_cut_off() -> bool:
    """Return whether a release will end a collective on this rank's GPU. No call in the cell fails
    because of that: the cell would go on with incomplete results."""
    c10d = sys.modules.get(C10D)
    if c10d is None or _world is None or not c10d.is_initialized():
        return False
    if not (torch_internals.uses_nccl(c10d) and torch_internals.aborts(c10d)):
        return False
    if torch_device.is_in_collective() or torch_works.goes_on() or torch_spans.is_awaited():
        return True
    # Anything else there is the cell's computation, unless some collectives were not followed.
    return not torch_device.sees_all() and torch_device.is_busy(_world.device)


def finish() -> None:
    """Record what is pending at the end of a cell; a failure must not keep the cell from ending."""
    for end in (torch_ddp_group.finish, torch_works.finish, torch_device.finish):
        try:
            end()
        except Exception as error:
            recorder.note(f"the last spans of torch.distributed are missing: {error!r}")


def state() -> dict[str, Any]:
    """Return what ranks compare after a cell that failed on any of them; empty if torch is unused.

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
        _aborting.join(NCCL_STUCK_TIMEOUT_S)
    return {
        "stuck": _aborting is not None and _aborting.is_alive(),
        "on": bool(c10d.is_initialized()),
        "again": _asked is not None,
        "backend": str(_asked["backend"]) if _asked and "backend" in _asked else None,
        "fresh": _fresh,
        "left": torch_ddp_group.left,
        # A group for another world is as useless as a released one.
        "released": _released or (c10d.is_initialized() and _made_for not in (None, _size())),
        "groups": groups,
    }


def _size() -> int:
    return _world.size if _world is not None else 1


def _is_copy() -> bool:
    """Return whether this process was forked from the rank: the groups it makes are its own."""
    return _world is not None and _world.is_copy


def settle(states: list[dict[str, Any]]) -> None:
    """Set up again what the ranks' `states` show as released or out of step.

    Raises RuntimeError if NCCL is stuck on a rank.
    """
    global _released, _lost
    if stuck := [rank for rank, each in enumerate(states) if each.get("stuck")]:
        raise RuntimeError(_stuck(stuck))
    c10d: Any = sys.modules.get(C10D)
    was_left = any(each.get("left") for each in states)
    torch_ddp_group.left = False
    if not any(states) or in_step(states):
        if was_left and c10d is not None and c10d.is_initialized():
            _revive()  # a reducer would wait for gradients of the pass that failed
        return
    # From here on, no rank may raise on its own, as the others would wait for it.
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
        # A restarted rank does not know the other arguments that its predecessor had passed.
        again = {name: again[name] for name in _ARGUMENTS_AFTER_RESTART if name in again}
    c10d.init_process_group(**again)
    _revive()
    if lost:
        print(GROUPS_LOST, file=sys.stderr)


def _revive() -> None:
    """Give all DDP models new reducers; a failure for one model does not affect the others."""
    for model in list(_models):
        try:
            torch_calls.revive(model)
        except Exception as error:
            print(NOT_REVIVED.format(error=error), file=sys.stderr)


def _end_groups(c10d: Any) -> None:
    """Destroy all groups. NCCL's are aborted, as destroying them waits for what is running on the
    GPU, forever if peers do not join in. Raises RuntimeError if aborting takes too long."""
    global _asked
    if torch_internals.uses_nccl(c10d) and _abort(c10d):
        if _aborting is not None:
            _aborting.join(NCCL_STUCK_TIMEOUT_S)
            if _aborting.is_alive():
                raise RuntimeError(_stuck([_world.rank if _world is not None else 0]))
        _asked = None
        _sockets.clear()
    if c10d.is_initialized():
        with contextlib.suppress(ValueError):  # it was aborted, and torch still keeps it
            c10d.destroy_process_group()


def _stuck(ranks: list[int]) -> str:
    """Return the message that NCCL is still running on the GPUs of these ranks, and what helps."""
    return NCCL_STUCK.format(whose=named(ranks), ranks=",".join(map(str, ranks)))


def set_aside() -> Any:
    """Begin a cell with a world of its own. Returns how the whole world's group was initialized."""
    return _asked, _fresh


def put_back(kept: Any) -> None:
    """Return to the whole world, and to how its group was initialized."""
    global _asked, _fresh
    _asked, _fresh = kept


def in_step(states: list[dict[str, Any]]) -> bool:
    """Return whether no rank has released its groups, and counts are equal in shared groups."""
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
            # A group of the user's own, perhaps of some ranks only: left alone.
            _made_for = None
            made = original(*args, **kwargs)
            torch_calls.default_is_own = True
            return made
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
        ranks = world.gather(INIT_TOPIC, mine)
        if all(each["on"] for each in ranks):
            # The cell that initialized it has run again.
            return None
        if module.is_initialized():
            if instead and torch_internals.uses_nccl(module):
                # What is still running has not failed: let it end.
                torch_device.let_end(world.device, NCCL_ABORT_TIMEOUT_S)
            _end_groups(module)
            if instead:
                print(SET_UP_AGAIN.format(instead=instead), file=sys.stderr)
        call = signature.bind(*args, **kwargs)
        if ranks[0]["method"] and given.get("init_method"):
            call.arguments["init_method"] = ranks[0]["method"]
        torch_internals.count_groups_anew(module)
        check = functools.partial(world.check_meeting, INIT_TOPIC, world.meeting)
        with _master(ranks[0]["address"], ranks[0]["port"]), _connecting.noting(_sockets, check):
            result = original(*call.args, **call.kwargs)
        _asked = {
            name: value
            for name, value in given.items()
            if name not in _SINGLE_USE_ARGUMENTS and value is not None
        }
        _fresh = False
        _made_for, torch_calls.default_is_own = world.size, False
        open_ports.note_open_ports("torch.distributed")
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
            own = {name: os.environ.get(name) for name in _NCCL_VARIABLES_IN_CELLS}
            if not (is_in_script or _is_copy()):
                os.environ.update(
                    {name: _NCCL_VARIABLES_IN_CELLS[name] for name in own if own[name] is None}
                )
            try:
                with torch_connecting.making(), sockets.noting(_sockets):
                    return make(*args, **kwargs)
            finally:
                restore_environment(own)

        return make_group

    module.init_process_group = init_process_group
    module.destroy_process_group = destroy_process_group
    torch_internals.patch(module, "_new_process_group_helper", noting_sockets)
    if hasattr(module, "split_group"):  # which makes a group in C++
        module.split_group = noting_sockets(module.split_group)


def _wrap_alone(module: Any) -> None:
    """Wrap `init_process_group` for the only rank: its cell, too, can run again."""
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
    """Return whether the arguments of `init_process_group` mean a world of `size` ranks."""
    return given.get("world_size", -1) in (-1, None, size)


def _instead(module: Any, backend: Any) -> str:
    """Return how requested backends differ from the default group's: `nccl instead of gloo`, or "".

    Raises RuntimeError if this PyTorch lacks a requested backend; the group is then kept.
    """
    if not module.is_initialized():
        return ""
    asked, used = torch_internals.backends_asked_for(module, backend), {}
    with contextlib.suppress(ValueError):  # this rank is not in the group
        used = torch_internals.backends_in_use(module)
    other = {device: name for device, name in asked.items() if used.get(device) != name}
    for name in other.values():
        if not module.is_backend_available(name):
            raise RuntimeError(NO_SUCH_BACKEND.format(name=name))
    before = {used[device] for device in other if device in used}
    words = " instead of " + ", ".join(sorted(before)) if before else " as well"
    return ", ".join(sorted(set(other.values()))) + words if other else ""


@contextlib.contextmanager
def _master(address: str, port: int) -> Iterator[None]:
    """Point to an unused store: torch's cannot be used twice while any part of it is alive."""
    own = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    try:
        yield
    finally:
        restore_environment(own)


def _own_address(host: str) -> str:
    """Return the address at which other ranks reach this rank's store: `host` may be any name or
    address of this machine, but the store listens on only one."""
    bound = os.environ.get("RANKROOM_BIND")
    return network.bound_address(host, bound) if bound else host


def _own_method(method: Any) -> str | None:
    """Return a `tcp://` init_method with the address of `_own_address`; None if it is unchanged."""
    if not isinstance(method, str) or not method.startswith("tcp://"):
        return None
    try:
        parts = urllib.parse.urlsplit(method)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # torch reports what is wrong with it
        return None
    own = _own_address(host)
    return None if own == host or port is None else parts._replace(netloc=f"{own}:{port}").geturl()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


NCCL_STUCK = (
    "NCCL could not abort the work on the GPU of {whose}: "
    "run `%cluster restart --ranks {ranks}` to free it"
)
NO_SUCH_BACKEND = (
    "this PyTorch has no backend {name!r}; torch.distributed stays initialized as it was"
)
SET_UP_AGAIN = (
    "torch.distributed is initialized again, with {instead}: DDP and FSDP models, DeepSpeed "
    "engines and groups from dist.new_group() that used it must be made again"
)
NOT_REVIVED = "a DDP model no longer works: make it again ({error})"
GROUPS_LOST = (
    "torch.distributed was set up again after the failed cell. The default group works, and so do "
    "DDP models on it; FSDP models, DeepSpeed's engines and groups made with dist.new_group are "
    "gone: run the cell that made them."
)
