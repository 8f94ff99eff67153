"""The user at the other end of a connection on this machine."""

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

import another_user
from rankroom.system import socket_owner


def test_it_is_this_user_until_it_has_ended():
    with socket.create_server(("127.0.0.1", 0)) as door:
        with socket.create_connection(door.getsockname()):
            here, peer = door.accept()
            assert socket_owner.owner(peer, here.getsockname()) == os.geteuid()
        assert socket_owner.owner(peer, here.getsockname()) == socket_owner.NO_OWNER
        here.close()


def test_no_process_here_is_at_the_end_of_another_machine():
    assert socket_owner.owner(("192.0.2.99", 9), ("127.0.0.1", 9)) == socket_owner.NO_OWNER


def test_it_is_another_user():
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(60)
        script = (
            "import socket\n"
            f"door = socket.create_connection({door.getsockname()})\n"
            "print(door.recv(1))"
        )
        seen = []

        def look() -> None:
            here, peer = door.accept()
            seen.append(socket_owner.owner(peer, here.getsockname()))
            here.sendall(b"x")
            here.close()

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        assert another_user.run(script) == "b'x'"
        looking.join(60)
        assert seen == [another_user.UID]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_tables_say_it_where_the_kernel_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
):
    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    assert socket_owner.tells_owners()
    test_it_is_this_user_until_it_has_ended()
    test_it_is_another_user()
    test_no_process_here_is_at_the_end_of_another_machine()
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket(family) as caller:
        mapped = "::ffff:" if family == socket.AF_INET6 else ""
        caller.connect((f"{mapped}127.0.0.1", door.getsockname()[1]))
        here, peer = door.accept()
        assert socket_owner.owner(peer, here.getsockname()) == os.geteuid()
        here.close()


def test_what_listens_at_a_port_is_no_end_of_a_connection():
    """The listener may be root's, and a peer on another machine may use the same port number."""
    with socket.create_server(("", 0)) as door:
        peer = ("127.0.0.1", door.getsockname()[1])
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert socket_owner.owner(peer, other.getsockname()) == socket_owner.NO_OWNER


def test_nothing_is_known_where_linux_does_not_say(monkeypatch):
    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    monkeypatch.setattr(socket_owner, "TABLES", ())
    assert not socket_owner.tells_owners()
    assert socket_owner.owner(("127.0.0.1", 9), ("127.0.0.1", 9)) is None


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_to_ask_with_it_is_not_let_in(
    monkeypatch: pytest.MonkeyPatch, error: int
):
    """An unknown owner is admitted, so strangers could get in by using up all descriptors."""

    def refuse(*_: object, **how: object) -> str:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    monkeypatch.setattr(Path, "read_text", refuse)
    peer, here = ("127.0.0.1", 9), ("127.0.0.1", 10)
    assert socket_owner.owner(peer, here) == socket_owner.NO_OWNER
    assert not socket_owner.is_ours(peer, here, {"127.0.0.1"})
    monkeypatch.setattr(socket, "create_server", refuse)
    assert socket_owner.tells_owners()  # no framework fails to start because of it


def test_another_address_of_this_machine_is_no_other_machine(monkeypatch: pytest.MonkeyPatch):
    """A stranger may connect from it, send, and disconnect before the owner is looked up."""
    monkeypatch.setattr(socket_owner, "owner", lambda peer, here: socket_owner.NO_OWNER)
    monkeypatch.setattr(socket_owner, "all_addresses", lambda: {"10.0.0.1", "10.1.0.1"})
    here, nodes = ("10.0.0.1", 1), {"10.0.0.1", "10.1.0.1", "10.0.0.2"}
    assert not socket_owner.is_ours(("10.1.0.1", 9), here, nodes)
    assert socket_owner.is_ours(("10.0.0.2", 9), here, nodes)


def test_where_owners_are_not_told_a_machine_without_ranks_is_no_node_all_the_same(monkeypatch):
    monkeypatch.setattr(socket_owner, "owner", lambda peer, here: None)
    monkeypatch.setattr(socket_owner, "all_addresses", lambda: {"10.0.0.1", "10.1.0.1"})
    here, nodes = ("10.0.0.1", 1), {"10.0.0.1", "10.0.0.2"}
    let_in = {
        peer: socket_owner.is_ours((peer, 9), here, nodes)
        for peer in ("10.0.0.1", "10.1.0.1", "10.0.0.2", "10.9.9.9")
    }
    assert let_in == {"10.0.0.1": True, "10.1.0.1": True, "10.0.0.2": True, "10.9.9.9": False}
