"""Requests between processes: answered, refused, and never blocking one another."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from rankroom.rpc import client, server
from rankroom.rpc.client import Client, Direct, RpcError, ask
from rankroom.rpc.server import Question, Server

THOUSAND = 1000


class Kept(Server):
    """Echoes each request as its reply, and keeps the request."""

    def __init__(self, interface: str, folder: Path) -> None:
        self.questions: list[Question] = []
        super().__init__(interface, folder, self.take)

    def take(self, question: Question) -> None:
        self.questions.append(question)
        if question.content.get("do") == "fail":
            raise LookupError("no such thing")
        if question.content.get("do") != "wait":
            question.answer(*question.buffers, **question.content)


@pytest.fixture(params=["", "127.0.0.1"], ids=["in a folder", "on loopback"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def on_loopback(tmp_path: Path) -> Iterator[Kept]:
    made = Kept("127.0.0.1", tmp_path)
    yield made
    made.close()


def reached(address: str) -> socket.socket:
    kind, _, where = address.partition("://")
    if kind == "tcp":
        host, _, port = where.rpartition(":")
        return socket.create_connection((host, int(port)), 5)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(where)
    return made


def connect_to(listening: Server) -> socket.socket:
    return reached(listening.address)


def test_a_request_is_answered(listening: Kept):
    assert ask(listening.address, listening.key, 30, do="this", number=7, words=["ä", None]) == {
        "do": "this", "number": 7, "words": ["ä", None],
    }  # fmt: skip


def test_many_questions_of_one_client_are_told_apart(listening: Kept):
    asking = Client(listening.address, listening.key)
    asked = [asking.ask(number=number) for number in range(200)]
    assert [each.result(30)["number"] for each in asked] == list(range(200))
    asking.close()


def test_a_client_receives_messages_that_it_did_not_request(listening: Kept):
    told: list[tuple[object, object]] = []
    heard = threading.Event()

    def take(content: object, buffers: object) -> None:
        told.append((content, buffers))
        heard.set()

    asking = Client(listening.address, listening.key, take)
    asking.ask(do="know me").result(30)
    listening.tell(listening.questions[0].peer, b"\0bytes", news=1)
    assert heard.wait(30)
    assert told == [({"news": 1}, [b"\0bytes"])]
    asking.close()


def test_a_delayed_answer_does_not_block_other_requests(listening: Kept):
    asking = Client(listening.address, listening.key)
    waiting = asking.ask(do="wait")
    assert asking.ask(do="now").result(30) == {"do": "now"}
    assert not waiting.done()
    listening.later(0.1, lambda: listening.questions[0].answer(late=True))
    assert waiting.result(30) == {"late": True}
    asking.close()


def test_a_direct_question_is_answered_in_the_thread_that_asks(listening: Kept):
    direct = Direct(listening.address, listening.key)
    before = threading.active_count()
    assert direct.ask(do="this").result(30) == {"do": "this"}
    with pytest.raises(RpcError, match="no such thing"):
        direct.ask(do="fail").result(30)
    assert threading.active_count() == before
    with pytest.raises(TimeoutError):
        direct.ask(do="wait").result(0.1)
    direct.close()


def test_messages_sent_at_once_do_not_overtake_earlier_ones(listening: Kept):
    telling = Client(listening.address, listening.key)
    for number in range(1000):
        telling.tell(number=number, at_once=number % 3 == 0)
    assert telling.ask(do="end").result(30)
    told = [each.content["number"] for each in listening.questions[:-1]]
    assert told == list(range(1000))
    telling.close()


def test_answers_that_come_while_another_thread_sends_are_taken_in(listening: Kept):
    """ZeroMQ signals an arrival only once, and a send may consume the signal."""
    asking = Client(listening.address, listening.key)
    for number in range(500):
        asked = asking.ask(number=number)
        for _ in range(5):
            asking.tell(do="wait", at_once=True)
        assert asked.result(30) == {"number": number}
    asking.close()


def test_an_error_in_the_server_is_returned_to_the_client(listening: Kept):
    with pytest.raises(RpcError, match="no such thing"):
        ask(listening.address, listening.key, 30, do="fail")
    assert ask(listening.address, listening.key, 30, do="next")


def test_a_closed_server_is_distinguished_from_a_silent_one(listening: Kept):
    with pytest.raises(TimeoutError):
        ask(listening.address, listening.key, 0.2, do="wait")
    listening.close()
    until = time.monotonic() + 30
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        while time.monotonic() < until:  # ZeroMQ closes the socket a moment later
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                ask(listening.address, listening.key, 0.2, do="this")


def test_a_server_that_ends_while_it_is_asked_is_not_waited_for(listening: Kept):
    threading.Timer(0.3, listening.close).start()
    began = time.monotonic()
    with pytest.raises(OSError):
        ask(listening.address, listening.key, 60, do="wait")
    assert time.monotonic() - began < 10


def test_a_process_that_dies_with_connections_not_taken_is_gone(tmp_path: Path):
    """A killed process accepts connections until the last of its threads has ended."""
    address = f"ipc://{tmp_path}/rpc"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{tmp_path}/rpc")
    listening.listen()
    threading.Timer(0.3, listening.close).start()
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        ask(address, zmq.curve_keypair()[0].decode(), 60, do="this")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["", "127.0.0.1:12345", "http://127.0.0.1:1"])
def test_an_invalid_address_is_refused_at_once(address: str):
    """A cluster file of an earlier version may hold such an address."""
    with pytest.raises(ConnectionRefusedError):
        ask(address, "", 5, do="this")


@pytest.mark.parametrize("kind", ["none", "no key", "another server's"])
def test_nobody_is_answered_without_the_key(listening: Kept, kind: str):
    key = {"none": "", "no key": "x" * 40}.get(kind, zmq.curve_keypair()[0].decode())
    with pytest.raises(OSError):
        ask(listening.address, key, 0.5, do="this")
    assert listening.questions == []
    assert ask(listening.address, listening.key, 30, do="this")


def test_a_peer_that_does_not_encrypt_is_not_heard(on_loopback: Kept):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.LINGER = 0
        stranger.connect(on_loopback.address)
        stranger.send_multipart([b"1", b'{"do": "this"}'])
        assert not stranger.poll(500)
    assert on_loopback.questions == []


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, b"\xff" + b"\0" * 8 + b"\x7f", b"\xff\0\0"],
    ids=["HTTP", "zeros", "a greeting", "half of it"],
)
def test_garbage_disturbs_nobody(on_loopback: Kept, said: bytes):
    with connect_to(on_loopback) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(said)
        assert ask(on_loopback.address, on_loopback.key, 30, do="this")
    assert len(on_loopback.questions) == 1


def test_a_peer_that_says_nothing_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_MS", 200)
    listening = Kept("127.0.0.1", tmp_path)
    with connect_to(listening) as stranger:
        assert stranger.recv(1000)  # ZeroMQ's greeting
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass
    listening.close()


# Like most processes, it starts with a soft limit of descriptors below the hard limit.
FEW = """
import resource, sys, time
from pathlib import Path
from rankroom.rpc.server import Server
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
made = Server(sys.argv[1], Path(sys.argv[2]), lambda asked: asked.answer(**asked.content))
print(made.address, made.key, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("interface", ["", "127.0.0.1"], ids=["in a folder", "on loopback"])
def test_a_thousand_connections_leave_room_for_those_with_the_key(interface: str, tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * THOUSAND:
        pytest.skip(f"no process here may have more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = [sys.executable, "-c", FEW, interface, str(tmp_path)]
    try:
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(
                subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(listening.kill)
            assert listening.stdout is not None
            address, key = listening.stdout.readline().split()
            for _ in range(THOUSAND):
                stack.enter_context(reached(address))
            begun = time.monotonic()
            assert ask(address, key, 30, do="this") == {"do": "this"}
            assert time.monotonic() - begun < 10
            assert listening.poll() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_oversized_message_is_not_read(listening: Kept, monkeypatch: pytest.MonkeyPatch):
    asking = Client(listening.address, listening.key)
    too_large = asking.ask(b"\0" * (server.MAX_PART_BYTES + 1), do="this")
    assert ask(listening.address, listening.key, 30, do="other")
    time.sleep(0.5)
    assert not too_large.done()
    assert [each.content["do"] for each in listening.questions] == ["other"]
    asking.close()


@pytest.mark.parametrize("said", [[b"1"], [b"1", b"{"], [b"1", b"[]"], [b"1", b"\xff"], []])
def test_malformed_messages_are_dropped(listening: Kept, said: list[bytes]):
    with client.connected(listening.address, listening.key) as asking:
        asking.send_multipart(said or [b""])
        assert not asking.poll(200)
    assert ask(listening.address, listening.key, 30, do="this")


def test_a_folder_too_deep_for_a_socket_falls_back_to_loopback(tmp_path: Path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    listening = Kept("", deep)
    assert listening.address.startswith("tcp://127.0.0.1:")
    assert ask(listening.address, listening.key, 30, do="this")
    listening.close()


def test_a_folder_that_cannot_hold_a_socket_falls_back_to_loopback(tmp_path: Path):
    listening = Kept("", tmp_path / "missing")
    assert listening.address.startswith("tcp://127.0.0.1:")
    assert ask(listening.address, listening.key, 30, do="this")
    listening.close()


def test_a_socket_left_by_a_dead_server_is_replaced(tmp_path: Path):
    (tmp_path / server.SOCKET_NAME).touch()
    listening = Kept("", tmp_path)
    assert ask(listening.address, listening.key, 30, do="this")
    listening.close()


def test_listening_on_another_machines_address_raises_os_error(tmp_path: Path):
    with pytest.raises(OSError, match=r"cannot listen on tcp://192\.0\.2\.1: "):
        Kept("192.0.2.1", tmp_path)


def test_closed_clients_and_servers_leave_no_descriptors_open(tmp_path: Path):
    def once() -> None:
        listening = Kept("127.0.0.1", tmp_path)
        asking = Client(listening.address, listening.key)
        asking.ask(do="this").result(30)
        ask(listening.address, listening.key, 30, do="that")
        asking.close()
        listening.close()

    once()  # opens what a process opens only once
    before = open_files()
    for _ in range(10):
        once()
    until = time.monotonic() + 5
    while open_files() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert open_files() <= before


def open_files() -> int:
    return psutil.Process().num_fds()
