"""Releases that arrive early: before a cell has started, or while a set-up connects."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rankroom.rank import recovery, sockets, world
from rankroom.rank.recovery import Recovery
from rankroom.rank.sockets import Connecting
from rankroom.rank.world import ReleasedError, World


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One item for each time that the framework was released."""
    done: list[str] = []

    class Adapter:
        install = staticmethod(lambda world: None)

        @staticmethod
        def release() -> list[str]:
            done.append("released")
            return ["it"]

    monkeypatch.setattr(recovery, "ADAPTERS", {"it": Adapter})
    return done


@pytest.fixture
def rank(released: list[str], monkeypatch: pytest.MonkeyPatch) -> World:
    """One of two ranks; its supervisor replies that both have arrived."""

    def ask(self: World, **question: Any) -> dict[str, Any]:
        return {"round": 0, "complete": True, "values": [1, 2], "ranks": [0, 1]}

    monkeypatch.setattr(World, "_ask", ask)
    return World(0, 2, rpc="ipc:///nowhere")


def test_a_release_before_its_cell_starts_takes_effect_in_it(rank: World, released: list[str]):
    """The rank was busy with another client's request when the others failed."""
    of_rank = Recovery(rank)
    of_rank.begin("one", [0, 1], 0, False)
    of_rank.end()
    assert of_rank.release("two", True) == [] and released == []
    of_rank.begin("two", [0, 1], 0, False)
    assert of_rank.began_released and of_rank.began_let_go and released == ["released"]
    with pytest.raises(ReleasedError, match="was released: another rank has failed"):
        rank.gather("hvd.init()", None)
    of_rank.end()
    of_rank.begin("three", [0, 1], 0, False)
    assert not (of_rank.began_released or of_rank.began_let_go) and released == ["released"]
    assert rank.gather("hvd.init()", None) == [1, 2]


def test_after_a_release_by_hand_ranks_may_meet_again_in_the_same_cell(
    rank: World, released: list[str]
):
    """No rank has left the cell: elastic training and `except HorovodInternalError` do this."""
    of_rank = Recovery(rank)
    of_rank.begin("one", [0, 1], 0, False)
    assert of_rank.release("one", False) == ["it"]
    rank.check_meeting("hvd.init()", 0)
    assert rank.gather("hvd.init()", None) == [1, 2]


def test_a_release_after_its_cell_does_not_affect_later_ones(rank: World, released: list[str]):
    """For example on a rank that has failed itself, when the others are released."""
    of_rank = Recovery(rank)
    of_rank.begin("one", [0, 1], 0, False)
    of_rank.end()
    assert of_rank.release("one", True) == ["it"]
    assert rank.gather("hvd.init()", None) == [1, 2]  # in another client's request


def test_a_released_rank_does_not_continue_with_a_killed_peer(rank: World):
    """Both had arrived, then one of them was killed."""
    rank.begin("one", (0, 1), 0)
    rank.release(True)
    with pytest.raises(ReleasedError):
        rank.gather("hvd.init()", None)
    with pytest.raises(ReleasedError):
        rank.check_meeting("hvd.init()", 0)


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.parametrize("listening", [True, False])
def test_a_library_setup_that_waits_for_a_peer_can_be_broken_off(
    peer: socket.socket, listening: bool
):
    connecting, found = Connecting(listening=listening), list[sockets.Socket]()
    assert not connecting.break_off()
    begun = threading.Event()

    def break_off() -> None:
        begun.wait(60)
        assert connecting.break_off(lambda: True) and not connecting.break_off(lambda: False)

    breaker = threading.Thread(target=break_off)
    breaker.start()
    with connecting.noting(found, lambda: None):
        with socket.create_connection(peer.getsockname()) as one:
            begun.set()
            assert one.recv(1) == b""
        breaker.join()
        # Like Gloo, the set-up continues with the next peer.
        with socket.create_connection(peer.getsockname()) as other:
            assert other.recv(1) == b""
    assert not connecting.break_off()
    with socket.create_connection(peer.getsockname()) as later:
        later.settimeout(3 * sockets.SHUTDOWN_POLL_INTERVAL_S)
        with pytest.raises(TimeoutError):
            later.recv(1)


def test_a_rank_released_beforehand_does_not_start_connecting():
    def check() -> None:
        raise ReleasedError(world.PEER_FAILED.format(what="it"))

    connecting = Connecting(listening=True)
    with pytest.raises(ReleasedError), connecting.noting([], check):
        pytest.fail("it has begun")
    assert not connecting.break_off()
