"""A simulated default group with NCCL: its collectives run on the GPU, and are aborted."""

import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from rankroom.rank.frameworks.torch import (
    torch_adapter,
    torch_calls,
    torch_connecting,
    torch_device,
    torch_internals,
    torch_spans,
    torch_works,
)
from rankroom.rank.frameworks.torch.torch_internals import C10D
from rankroom.rank.world import World


def backend_config() -> str:
    raise ValueError("Invalid process group specified")


def distributed(told: list, config: str | None = "cuda:nccl", **more) -> SimpleNamespace:
    """A fake torch.distributed; aborting or destroying its groups removes them."""
    here = SimpleNamespace(on=True)

    def gone(group: object = None) -> None:
        if not here.on:
            raise ValueError("Invalid process group specified or has been destroyed.")
        told.append(group)
        here.on = False

    return SimpleNamespace(
        __name__=C10D,
        is_initialized=lambda: here.on,
        get_backend_config=backend_config if config is None else lambda: config,
        GroupMember=SimpleNamespace(WORLD="the world"),
        _world=SimpleNamespace(pg_names={"default": "0", "another": "1"}),
        **{"_abort_process_group": gone, "destroy_process_group": gone} | more,
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("_released", "_lost"):
        monkeypatch.setattr(torch_adapter, name, False)
    for name in ("_aborting", "_asked"):
        monkeypatch.setattr(torch_adapter, name, None)
    monkeypatch.setattr(torch_adapter, "_world", World(device="cuda:1"))
    monkeypatch.setattr(torch_connecting, "connected", set())


@pytest.mark.parametrize(
    ("backend", "config", "aborted"),
    [
        ("nccl", "cuda:nccl", True),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", True),
        ("undefined", "cuda:nccl", True),  # init_process_group() without arguments
        ("undefined", "cpu:gloo", False),
        ("gloo", "cpu:gloo,cuda:gloo", False),
        ("gloo", None, False),  # a group of the user's own that this rank is not in
    ],
)
def test_a_release_aborts_groups_that_use_nccl(monkeypatch, backend, config, aborted):
    told = []
    monkeypatch.setitem(sys.modules, C10D, distributed(told, config, get_backend=lambda: backend))
    assert torch_adapter.release() == ["torch.distributed"]
    # WORLD, not None: with None, some releases of PyTorch abort the default group only.
    assert told == (["the world"] if aborted else [])
    # The aborted groups no longer exist when the next cell counts those that were lost.
    assert torch_adapter._lost == aborted


def test_a_pytorch_without_abort_releases_nothing(monkeypatch):
    c10d = distributed([])
    del c10d._abort_process_group
    monkeypatch.setitem(sys.modules, C10D, c10d)
    monkeypatch.setattr(torch_internals.recorder, "note", lambda text: None)
    monkeypatch.setattr(torch_device, "is_in_collective", lambda: True)
    assert not torch_adapter.is_cut_off()  # this PyTorch could not end the collective
    assert torch_adapter.release() == []


def test_an_abort_that_goes_on_is_not_begun_again(monkeypatch):
    told, over = [], threading.Event()
    c10d = distributed(told, _abort_process_group=lambda group: (told.append(group), over.wait(60)))
    monkeypatch.setitem(sys.modules, C10D, c10d)
    monkeypatch.setattr(torch_adapter, "NCCL_ABORT_TIMEOUT_S", 0.01)
    torch_adapter.release()
    torch_adapter.release()
    assert len(told) == 1 and torch_adapter._aborting.is_alive()
    over.set()


def test_events_are_kept_until_the_abort(monkeypatch):
    """Destroying an event may block until its collective has ended, and this one hangs."""
    each, spare = torch_device.Followed("before", "after", "cuda:1"), {}
    monkeypatch.setattr(torch_device, "_spare", spare)
    torch_device._followed.append(each)
    aborts = []
    c10d = distributed([], _abort_process_group=lambda group: aborts.append(dict(spare)))
    monkeypatch.setitem(sys.modules, C10D, c10d)
    torch_adapter.release()
    assert aborts == [{"cuda:1": [each]}] and not torch_device._followed


STATE = {"on": True, "again": False, "fresh": False, "released": True, "groups": {}}


def test_ranks_that_are_out_of_step_do_not_wait_for_nccl(monkeypatch):
    """Destroying NCCL's groups would wait for what is running on the GPU."""
    told = []
    c10d = distributed(told, destroy_process_group=pytest.fail)
    monkeypatch.setitem(sys.modules, C10D, c10d)
    monkeypatch.setattr(torch_adapter, "_asked", {"backend": "nccl"})
    torch_adapter.settle([STATE, STATE])
    assert told == ["the world"] and torch_adapter._asked is None


def test_an_abort_that_does_not_end_fails_and_suggests_a_restart(monkeypatch):
    over = threading.Event()
    c10d = distributed([], _abort_process_group=lambda group: over.wait(60))
    monkeypatch.setitem(sys.modules, C10D, c10d)
    for name in ("NCCL_ABORT_TIMEOUT_S", "NCCL_STUCK_TIMEOUT_S"):
        monkeypatch.setattr(torch_adapter, name, 0.01)
    with pytest.raises(RuntimeError, match=r"of rank 0: run `%cluster restart --ranks 0` to"):
        torch_adapter.settle([STATE, STATE])
    over.set()


def test_settling_ignores_a_group_that_was_already_aborted(monkeypatch):
    def aborted(group=None):
        raise ValueError("Invalid process group specified or has been destroyed.")

    c10d = distributed([], destroy_process_group=aborted, _abort_process_group=aborted)
    monkeypatch.setitem(sys.modules, C10D, c10d)
    torch_adapter.settle([STATE, STATE])


def test_replacing_nccl_waits_for_the_gpu_only_up_to_a_timeout(monkeypatch):
    told, waited = [], []
    c10d = distributed(
        told, destroy_process_group=pytest.fail, init_process_group=lambda backend: None,
        Backend=str, BackendConfig=lambda backend: f"cuda:{backend}",
        is_backend_available=lambda name: True, _new_process_group_helper=None,
    )  # fmt: skip
    monkeypatch.setattr(torch_calls, "guard", lambda module, world: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(torch_device, "let_end", lambda *given: waited.append(given))
    world = World(size=2, device="cuda:1", present=(0, 1))
    world.gather = lambda topic, value, meeting=None: [value, value]
    torch_adapter._wrap(c10d, world)
    c10d.init_process_group("gloo")
    assert told == ["the world"]
    assert waited == [
        ("cuda:1", torch_adapter.NCCL_ABORT_TIMEOUT_S)
    ]  # what is still running has not failed


class Work:
    """The work returned by a call with `async_op=True`."""

    def __init__(self, done: bool) -> None:
        self.is_completed = lambda: done


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is busy with work not known to be a collective."""
    monkeypatch.setitem(sys.modules, C10D, distributed([]))
    monkeypatch.setattr(torch_device.recorder, "on", True)
    monkeypatch.setattr(torch_device, "is_busy", lambda device: True)
    monkeypatch.setattr(torch_device, "sees_all", lambda: True)
    monkeypatch.setattr(torch_spans, "_results", {})


def test_a_release_cuts_off_no_collective_on_a_gpu_that_only_computes(gpu, monkeypatch):
    assert not torch_adapter.is_cut_off()
    monkeypatch.setattr(torch_device, "sees_all", lambda: False)
    assert torch_adapter.is_cut_off()  # it may be in a collective that is not followed
    monkeypatch.setattr(torch_device, "is_busy", lambda device: False)
    assert not torch_adapter.is_cut_off()


def test_a_release_cuts_off_a_followed_collective(gpu, monkeypatch):
    monkeypatch.setattr(torch_device, "is_in_collective", lambda: True)
    assert torch_adapter.is_cut_off()


def test_a_release_cuts_off_a_pending_async_collective(gpu):
    world = World()

    def begun(device):
        return torch_works.PendingCollective("dist.all_reduce #1", -1, 0, world, device)

    done, on_cpu, hangs = Work(True), Work(False), Work(False)
    torch_works.keep(done, begun("cuda:1"), False)
    torch_works.keep(on_cpu, begun(None), False)
    assert not torch_adapter.is_cut_off()
    torch_works.keep(hangs, begun("cuda:1"), False)
    assert torch_adapter.is_cut_off()
    del hangs
    assert not torch_adapter.is_cut_off()


def test_a_functional_collective_is_cut_off_while_its_result_exists(gpu):
    class Result:
        pass

    result = Result()
    c10d = SimpleNamespace(Work=Work)
    operation = torch_spans.Operation("all_reduce", ["self", "group"], c10d, World())
    begun = torch_works.PendingCollective("dist.all_reduce #1", -1, 0, World(), "cuda:1")
    operation._later(SimpleNamespace(elem=result), begun, None)
    assert torch_adapter.is_cut_off()
    del result
    assert not torch_adapter.is_cut_off()


def listener(host: str = "127.0.0.1") -> socket.socket:
    found = socket.socket()
    found.bind((host, 0))
    found.listen()
    return found


def connects(listening: list[socket.socket]) -> OSError:
    """Release a call that waits for peers, from another thread; return the error that ends it."""
    caught: list[OSError] = []

    def release():
        while torch_connecting._before is None or not listening:
            time.sleep(0.01)
        torch_connecting.give_up()

    def call():
        listening.append(listener())
        listening[0].settimeout(1.0)  # only in this test: NCCL has no timeout
        try:
            listening[0].accept()
        except OSError as error:
            caught.append(error)
        return "result"

    thread = threading.Thread(target=release)
    thread.start()
    assert torch_connecting.first("a group", call, (), {}) == "result"
    thread.join()
    listening[0].close()
    return caught[0]


@pytest.fixture
def nccl(monkeypatch):
    monkeypatch.setitem(sys.modules, C10D, distributed([]))


def test_a_rank_that_waits_for_others_to_connect_is_released(nccl):
    before, listening = listener(), []
    error = connects(listening)
    assert not isinstance(error, TimeoutError)
    with socket.create_connection(before.getsockname(), 1), before.accept()[0]:
        pass  # a socket that was open before still works
    before.close()
    assert torch_connecting._before is None and "a group" in torch_connecting.connected


def test_listening_sockets_are_left_alone_once_a_peer_has_connected(nccl):
    """NCCL's own servers listen by then; without their sockets, they would loop forever."""
    server = listener()

    class Both(list):
        """Connects to another rank when a listening socket is added."""

        def append(self, each):
            ends = socket.create_connection(server.getsockname(), 1), server.accept()[0]
            more.extend(ends)
            super().append(each)

    more: list[socket.socket] = []
    assert isinstance(connects(Both()), TimeoutError)
    for each in (server, *more):
        each.close()


def test_servers_that_listen_everywhere_are_left_alone(nccl, monkeypatch):
    monkeypatch.setattr(f"{__name__}.listener.__defaults__", ("0.0.0.0",))
    assert isinstance(connects([]), TimeoutError)


def test_sockets_are_not_listed_unless_nccl_is_connecting(nccl, monkeypatch):
    monkeypatch.setattr(torch_connecting.sockets, "open_sockets", pytest.fail)
    torch_connecting.give_up()
    monkeypatch.setitem(sys.modules, C10D, distributed([], "cpu:gloo"))
    assert torch_connecting.first("another", lambda: 1, (), {}) == 1
    assert "another" in torch_connecting.connected


def test_making_a_group_resets_connections_and_spares_gloos_sockets(nccl):
    torch_connecting.connected.add("a group")

    def call():
        with torch_connecting.making():
            assert torch_connecting._before is None
            found.append(listener())  # like Gloo's, which ends the process if this socket fails
        assert torch_connecting.connected == set()
        torch_connecting.give_up()

    found: list[socket.socket] = []
    torch_connecting.first("a list of ranks", call, (), {})
    with socket.create_connection(found[0].getsockname(), 1), found[0].accept()[0]:
        found[0].close()
