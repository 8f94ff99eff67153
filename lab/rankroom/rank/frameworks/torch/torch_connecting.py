"""Release a rank from NCCL's first collective of a group, in which the group's ranks connect.

They connect within the call itself. A rank whose peers do not join waits on a socket for one of
them to send the address of the next. No abort ends that, as there is no communicator yet; closing
the sockets on which it listens does, with an NCCL error. They are recognized by when they were
opened, and by the absence of connections: once its peers have joined, NCCL has connections, and
also listens on sockets that must be left alone.
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
_WILDCARD_ADDRESSES = (
    "0.0.0.0",
    "::",
)  # where other servers may listen; NCCL listens on one interface

connected: set[Any] = set()  # keys for which `first` is not needed again
_before: set[sockets.Socket] | None = None  # open when the current call began, if in one
_main = threading.main_thread().ident


def first(key: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a collective in which the ranks connect, as they have not done so yet for `key`."""
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
    """Mark the making of a group, which has yet to connect; Gloo's sockets are to be left alone."""
    global _before
    in_call, _before = _before is not None, None
    try:
        yield
    finally:
        connected.clear()
        if in_call:
            _before = sockets.open_sockets()


def give_up() -> None:
    """Release the main thread if it waits for peers to connect; called from another thread."""
    before = _before
    if before is None:
        return
    opened = sockets.open_sockets() - before
    hosts = {each: _host(*each) for each in opened}
    listening = {each: host for each, (host, listens) in hosts.items() if listens}
    if not any(host in listening.values() for host, listens in hosts.values() if not listens):
        sockets.break_off(listening, listening=True)


def _host(descriptor: int, inode: int) -> tuple[str, bool]:
    """Return a TCP socket's local address, and whether it listens on that interface only."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family in _FAMILIES and found.type == socket.SOCK_STREAM:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            host = str(found.getsockname()[0])
            return host, bool(listens) and host not in _WILDCARD_ADDRESSES
    return "", False
