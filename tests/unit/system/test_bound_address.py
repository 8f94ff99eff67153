"""Names of this machine are replaced by the address where ranks listen, other names are kept."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from rankroom.rank.frameworks.torch import torch_adapter
from rankroom.system import network

NAMES = {
    "login": ["127.0.1.1"], "node1": ["10.1.0.1", "fe80::1%ib0"], "node2": ["10.1.0.2"],
    "localhost": ["::1", "127.0.0.1"], "10.0.0.1": ["10.0.0.1"], "fd00::7": ["fd00::7"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def node1(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has 10.0.0.1 on ib0, where its ranks listen, and 10.1.0.1 on eth0."""

    def look_up(host: str, *_: object, **how: object) -> list[tuple[object, ...]]:
        if host not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in NAMES[host]]

    own = ["10.0.0.1", "10.1.0.1", "fd00::7", "fe80::1%ib0"]
    found = {each: [SimpleNamespace(family=socket.AF_INET, address=each)] for each in own}
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setenv("RANKROOM_BIND", "10.0.0.1")


@pytest.mark.parametrize("host", ["login", "node1", "localhost", "10.0.0.1", "fd00::7"])
def test_each_name_of_this_machine_becomes_the_bound_address(host: str):
    assert network.bound_address(host, "10.0.0.1") == "10.0.0.1"


@pytest.mark.parametrize("host", ["node2", "no-such-host", ""])
def test_the_name_of_another_machine_is_kept(host: str):
    assert network.bound_address(host, "10.0.0.1") == host


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("tcp://node1:23456", "tcp://10.0.0.1:23456"),
        ("tcp://node1:23456?rank=0&world_size=2", "tcp://10.0.0.1:23456?rank=0&world_size=2"),
        ("tcp://[fd00::7]:23456", "tcp://10.0.0.1:23456"),
        ("tcp://10.0.0.1:23456", None),
        ("tcp://node2:23456", None),
        ("tcp://node1:port", None),
        ("env://", None),
        ("file:///tmp/store", None),
        (None, None),
    ],
)
def test_a_torch_init_method_uses_the_bound_address(method: str | None, instead: str | None):
    assert torch_adapter._own_method(method) == instead


def test_a_torch_init_method_is_kept_if_no_bound_address_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANKROOM_BIND")
    assert torch_adapter._own_method("tcp://node1:23456") is None
