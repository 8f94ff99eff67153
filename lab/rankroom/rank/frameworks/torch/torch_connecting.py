"""NCCL's first collective of a group, in which its ranks connect: that happens in the call itself.

A rank whose peers do not come waits there at a socket, for one of them to tell it where the next
is. No abort ends that, as there is no communicator yet. Ending the sockets that it listens at does,
with an error of NCCL's. They are told from others by when they were opened, and by what is there:
once its peers have come, NCCL listens at sockets that must be left alone, but has connections, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from typing import Any

from rankroom.rank import sockets
from rankroom.rank.frameworks.torch import torch_internals

_FAMILIES = socket.AF_INET, socket.AF_INET6
_ANY = "0.0.0.0", "::"  # where servers of other kinds may listen; NCCL has one interface

connected: set[Any] = set()  # what `first` need not be asked about again
_before: set[sockets.Socket] | None = None  # what was open when the present call began, if in one
_main = threading.main_thread().ident


def first(key: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call what has ranks connect, as they have not yet for `key`."""
    global _before
    is_ours = get_ident() == _main and _before is None
    if not is_ours or not torch_internals.uses_nccl(sys.modules[torch_internals.C10D]):
        result = function(*args, **kwargs)
    else:
        _before = sockets.open_sockets()
        try:
            result = function(*args, **kwargs)
        finally:
            _before = None
    connected.add(key)
    return result


@contextlib.contextmanager
def making() -> Iterator[None]:
    """A group is made, whose ranks have yet to connect; Gloo's listen in here, and go on to."""
    global _before
    in_call, _before = _before is not None, None
    try:
        yield
    finally:
        connected.clear()
        if in_call:
            _before = sockets.open_sockets()


def give_up() -> None:
    """Have the main thread not wait for others to connect; called from another one."""
    before = _before
    if before is None:
        return
    opened = sockets.open_sockets() - before
    hosts = {each: _host(*each) for each in opened}
    listening = {each: host for each, (host, listens) in hosts.items() if listens}
    if not any(host in listening.values() for host, listens in hosts.values() if not listens):
        sockets.break_off(listening, listening=True)


def _host(descriptor: int, inode: int) -> tuple[str, bool]:
    """The address of this host that a socket of TCP has, and whether it listens."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family in _FAMILIES and found.type == socket.SOCK_STREAM:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            host = str(found.getsockname()[0])
            return host, bool(listens) and host not in _ANY
    return "", False
