"""Who is at the other end of a connection on this machine."""

import os
import socket
import threading

import another_user
from rankroom.system import socket_owner


def test_it_is_this_user_until_it_has_ended():
    with socket.create_server(("127.0.0.1", 0)) as door:
        with socket.create_connection(door.getsockname()):
            here, peer = door.accept()
            assert socket_owner.owner(peer, here.getsockname()) == os.geteuid()
        assert socket_owner.owner(peer, here.getsockname()) == socket_owner.NOBODY
        here.close()


def test_nobody_here_is_at_the_end_of_another_machine():
    assert socket_owner.owner(("192.0.2.99", 9), ("127.0.0.1", 9)) == socket_owner.NOBODY


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


def test_nothing_is_known_where_linux_does_not_say(monkeypatch):
    monkeypatch.setattr(socket_owner, "NETLINK_SOCK_DIAG", 31)
    assert socket_owner.owner(("127.0.0.1", 9), ("127.0.0.1", 9)) is None
