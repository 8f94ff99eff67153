"""The user at the other end of a connection on this machine."""

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

import another_user
from rankroom.system import socket_owner


def test_the_owner_of_a_connection_is_this_user_until_it_is_closed():
    with socket.create_server(("127.0.0.1", 0)) as door:
        with socket.create_connection(door.getsockname()):
            here, peer = door.accept()
            assert socket_owner.owner(peer, here.getsockname()) == os.geteuid()
        assert socket_owner.owner(peer, here.getsockname()) == socket_owner.NO_OWNER
        here.close()


def test_a_connection_from_another_machine_has_no_owner():
    assert socket_owner.owner(("192.0.2.99", 9), ("127.0.0.1", 9)) == socket_owner.NO_OWNER


def test_the_owner_of_another_users_connection_is_that_user():
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
def test_owners_are_read_from_tables_if_the_kernel_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
):
    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    assert socket_owner.tells_owners()
    test_the_owner_of_a_connection_is_this_user_until_it_is_closed()
    test_the_owner_of_another_users_connection_is_that_user()
    test_a_connection_from_another_machine_has_no_owner()
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket(family) as caller:
        mapped = "::ffff:" if family == socket.AF_INET6 else ""
        caller.connect((f"{mapped}127.0.0.1", door.getsockname()[1]))
        here, peer = door.accept()
        assert socket_owner.owner(peer, here.getsockname()) == os.geteuid()
        here.close()


def test_a_listening_socket_is_not_taken_for_a_peer():
    """The listener may be root's, and a peer on another machine may use the same port number."""
    with socket.create_server(("", 0)) as door:
        peer = ("127.0.0.1", door.getsockname()[1])
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert socket_owner.owner(peer, other.getsockname()) == socket_owner.NO_OWNER


def test_the_owner_is_unknown_without_netlink_and_tables(monkeypatch):
    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    monkeypatch.setattr(socket_owner, "TABLES", ())
    assert not socket_owner.tells_owners()
    assert socket_owner.owner(("127.0.0.1", 9), ("127.0.0.1", 9)) is None


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_connection_is_refused_if_no_descriptor_is_left_to_look_it_up(
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


def test_another_address_of_this_machine_is_not_taken_for_a_node(monkeypatch: pytest.MonkeyPatch):
    """A stranger may connect from it, send, and disconnect before the owner is looked up."""
    monkeypatch.setattr(socket_owner, "owner", lambda peer, here: socket_owner.NO_OWNER)
    monkeypatch.setattr(socket_owner, "all_addresses", lambda: {"10.0.0.1", "10.1.0.1"})
    here, nodes = ("10.0.0.1", 1), {"10.0.0.1", "10.1.0.1", "10.0.0.2"}
    assert not socket_owner.is_ours(("10.1.0.1", 9), here, nodes)
    assert socket_owner.is_ours(("10.0.0.2", 9), here, nodes)


def test_without_known_owners_only_machines_with_ranks_are_accepted(monkeypatch):
    monkeypatch.setattr(socket_owner, "owner", lambda peer, here: None)
    monkeypatch.setattr(socket_owner, "all_addresses", lambda: {"10.0.0.1", "10.1.0.1"})
    here, nodes = ("10.0.0.1", 1), {"10.0.0.1", "10.0.0.2"}
    let_in = {
        peer: socket_owner.is_ours((peer, 9), here, nodes)
        for peer in ("10.0.0.1", "10.1.0.1", "10.0.0.2", "10.9.9.9")
    }
    assert let_in == {"10.0.0.1": True, "10.1.0.1": True, "10.0.0.2": True, "10.9.9.9": False}
