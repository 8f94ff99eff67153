"""The rendezvous of ranks: gatherings that a rank can leave, and stores for Horovod."""

import contextlib
import io
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import another_user
from rankroom.rank import world
from rankroom.rank.world import RegroupedError, ReleasedError, World
from rankroom.rpc.client import ask
from rankroom.rpc.server import Server
from rankroom.supervisor import horovod_store, rendezvous
from rankroom.supervisor.rendezvous import Rendezvous
from rankroom.system import network, socket_owner

# Connects from an address of this machine and prints the reply; empty if the peer hangs up.
CONNECT = """
import socket
with socket.create_connection(("127.0.0.1", {port}), 5, ("{source}", 0)) as door:
    try:
        door.sendall({said!r}.encode())
        print(door.recv(100))
    except OSError:
        print(b"")
"""


@pytest.fixture
def where(tmp_path):
    """Yield the address and the key of a server that offers a rendezvous."""
    server = Server("127.0.0.1", tmp_path, lambda question: meeting.take(question))
    ours = partial(socket_owner.is_ours, nodes=())
    meeting = Rendezvous("127.0.0.1", server.later, ours)
    yield server.address, server.key
    server.close()


@pytest.fixture
def worlds(where):
    return [World(rank, 2, rpc=where[0], rpc_key=where[1], present=(0, 1)) for rank in (0, 1)]


def together(*calls):
    """Make these calls at the same time; return what each returned or raised."""

    def outcome(call):
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def test_a_gather_returns_the_values_of_all_ranks_to_each(worlds):
    for turn in range(3):
        found = together(
            *(lambda w=w, turn=turn: w.gather("topic", [w.rank, turn]) for w in worlds)
        )
        assert found == [[[0, turn], [1, turn]]] * 2
        assert [w.round("topic") for w in worlds] == [turn + 1] * 2


def test_a_slow_rank_is_waited_for_and_named(worlds, monkeypatch):
    monkeypatch.setattr(rendezvous, "PROGRESS_REPLY_DELAY_S", 0.02)
    monkeypatch.setattr(world, "WAIT_NOTICE_DELAY_S", 0.05)
    deadline = time.monotonic() + 60

    def come_late():
        # Once rank 0 has reported its wait, however long that takes.
        while not said.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        worlds[1].gather("hvd.init()", 1)

    late = threading.Thread(target=come_late, daemon=True)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        late.start()
        assert worlds[0].gather("hvd.init()", 0) == [0, 1]
        late.join()
    assert said.getvalue() == "rank 0 waits in hvd.init() for rank 1\n"


def test_a_release_ends_the_wait_of_a_rank(worlds):
    threading.Timer(0.1, worlds[0].release, [True]).start()
    with pytest.raises(ReleasedError, match="topic was released: rank 1 failed before"):
        worlds[0].gather("topic", 0)


def test_ranks_that_failed_at_different_places_meet_again(worlds):
    """Rank 0 waited twice and gave up, rank 1 never did: they still meet in the same round."""
    for _ in range(2):
        threading.Timer(0.05, worlds[0].release, [True]).start()
        with pytest.raises(ReleasedError):
            worlds[0].gather("topic", "stale")
        worlds[0].begin("next run", (0, 1), epoch=0)
    found = together(*(lambda w=w: w.gather("topic", "fresh") for w in worlds))
    assert found == [["fresh", "fresh"]] * 2
    assert worlds[0].round("topic") == worlds[1].round("topic")


def test_a_gather_ignores_values_of_the_previous_epoch(worlds):
    threading.Timer(0.05, worlds[0].release, [True]).start()
    with pytest.raises(ReleasedError):
        worlds[0].gather("topic", "old")
    for each in worlds:
        each.begin("run", (0, 1), epoch=1)
    assert together(*(lambda w=w: w.gather("topic", w.rank) for w in worlds)) == [[0, 1]] * 2


def test_regrouped_ranks_meet_again_without_a_process_that_is_gone(worlds):
    gone = World(1, 2, rpc=worlds[0].rpc, rpc_key=worlds[0].rpc_key, present=(0, 1))
    threading.Timer(0.1, worlds[0].regroup, [1]).start()
    with pytest.raises(RegroupedError):
        worlds[0].gather("topic", "old")
    threading.Timer(0.3, gone.release, [True]).start()
    with pytest.raises(ReleasedError):
        gone.gather("topic", "gone")
    worlds[1].begin("", (0, 1), 0, meeting=1, back="was killed")
    found = together(*(lambda w=w: w.gather("topic", w.rank) for w in worlds))
    assert found == [[0, 1]] * 2
    with pytest.raises(RegroupedError):  # meeting 0 is over
        worlds[0].gather("topic", 0, meeting=0)


class Asked:
    """A request, and its reply."""

    def __init__(self, **content):
        self.content = content
        self.answered = {}

    def answer(self, **answer):
        self.answered = answer


def test_a_gone_rank_is_removed_from_gatherings_and_closes_stores():
    made = Rendezvous("127.0.0.1", lambda seconds, call: None, lambda peer, here: True)
    gather = {"do": "gather", "topic": "t", "round": None, "size": 2}
    gone, store = Asked(**gather, rank=1, value="gone"), Asked(do="meet", key="horovod")
    made.take(gone)
    made.take(store)
    made.break_up(1)
    assert gone.answered["ranks"] == [] and not gone.answered["complete"]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{store.answered['port']}/scope/key", timeout=5)
    here, again = Asked(**gather, rank=0, value=0), Asked(**gather, rank=1, value=1)
    made.take(here)
    assert not here.answered
    made.take(again)
    assert here.answered["values"] == again.answered["values"] == [0, 1]


def test_only_the_newest_finished_stores_of_each_library_are_kept():
    made = Rendezvous("127.0.0.1", lambda seconds, call: None, lambda peer, here: True)
    for number in range(20):
        for library in ("horovod.torch", "horovod.tensorflow"):
            key = f"{library}/0/{number}"
            made.take(Asked(do="meet", key=key))
            made.take(Asked(do="met", key=key, rank=0, size=1))
    assert len(made._data) == len(made._met) == 2 * rendezvous.MAX_STORES_PER_LIBRARY
    assert "horovod.torch/0/19" in made._data


def test_a_store_serves_until_all_have_met(where):
    port = ask(*where, do="meet", key="horovod")["port"]
    assert ask(*where, do="meet", key="horovod")["port"] == port
    url = f"http://127.0.0.1:{port}/scope/key"
    urllib.request.urlopen(urllib.request.Request(url, data=b"\0value", method="PUT")).close()
    with urllib.request.urlopen(url) as reply:
        assert reply.read() == b"\0value"
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/scope/other")
    missing.value.close()
    assert missing.value.code == 404
    for rank in range(2):
        urllib.request.urlopen(url).close()
        ask(*where, do="met", key="horovod", rank=rank, size=2)
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=5)


@pytest.mark.parametrize("server", ["supervisor", "store"])
def test_simultaneous_connections_of_all_ranks_are_accepted_at_once(where, server):
    """A connection that the kernel drops, as its queue is full, is retried only after a second."""
    host, _, port = where[0].removeprefix("tcp://").partition(":")
    if server == "store":
        port = ask(*where, do="meet", key="many")["port"]
    made = [socket.socket() for _ in range(300)]
    poll = select.poll()
    for each in made:
        each.setblocking(False)
        each.connect_ex((host, int(port)))
        poll.register(each, select.POLLOUT)
    until = time.monotonic() + 0.9
    connected: set[int] = set()
    while len(connected) < len(made) and time.monotonic() < until:
        connected |= {fd for fd, what in poll.poll(100) if what == select.POLLOUT}
    for each in made:
        each.close()
    assert len(connected) == len(made)


def test_a_store_can_be_opened_after_its_thread_failed_to_start(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(horovod_store, "_loop", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            horovod_store.HorovodStore("127.0.0.1", {}, lambda peer, here: True)
    opened = []

    def open_again():
        opened.append(horovod_store.HorovodStore("127.0.0.1", {}, lambda peer, here: True))

    asking = threading.Thread(target=open_again, daemon=True)
    asking.start()
    asking.join(10)
    assert [store.port > 0 for store in opened] == [True]
    opened[0].close()


def test_a_pending_read_of_a_store_returns_once_the_value_is_written(where):
    port = ask(*where, do="meet", key="later")["port"]
    url = f"http://127.0.0.1:{port}/scope/key"

    def put():
        time.sleep(0.2)
        urllib.request.urlopen(urllib.request.Request(url, data=b"value", method="PUT")).close()
        return time.monotonic()

    def get():
        with urllib.request.urlopen(url) as reply:
            return reply.read(), time.monotonic()

    told, *read = together(put, *[get] * 8)
    assert [value for value, _ in read] == [b"value"] * 8
    assert max(when for _, when in read) < told + 0.3


@pytest.mark.parametrize(
    "said",
    [
        b"\0" * 2_000_000,
        b"PUT /scope/key HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 2_000_000,
        b"PUT /scope/key HTTP/1.1\r\nContent-Length: " + b"9" * 100_000 + b"\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_store_closes_the_connection_of_an_invalid_request(where, said):
    port = ask(*where, do="meet", key="strangers")["port"]
    with socket.create_connection(("127.0.0.1", port), 5) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    with pytest.raises(urllib.error.HTTPError):  # the store still serves others
        urllib.request.urlopen(f"http://127.0.0.1:{port}/scope/key")


@pytest.mark.parametrize("source", [*network.interfaces().values(), "127.0.0.9"])
def test_another_user_of_the_machine_gets_nothing_from_a_store(where, source):
    port = ask(*where, do="meet", key="others")["port"]
    url = f"http://127.0.0.1:{port}/scope/key"
    urllib.request.urlopen(urllib.request.Request(url, data=b"mine", method="PUT")).close()
    for said in ("GET /scope/key HTTP/1.0", "PUT /scope/key HTTP/1.0\r\nContent-Length: 0"):
        script = CONNECT.format(source=source, port=port, said=f"{said}\r\n\r\n")
        assert another_user.run(script) == "b''"
    with urllib.request.urlopen(url) as reply:
        assert reply.read() == b"mine"


def test_a_connection_without_an_owner_is_accepted_from_other_nodes_only(monkeypatch):
    """This kernel does not know the owners of connections from other machines."""
    monkeypatch.setattr(socket_owner, "owner", lambda peer, here: socket_owner.NO_OWNER)
    nodes, here = {"10.0.0.2", "10.0.0.1"}, ("10.0.0.1", 1)
    assert socket_owner.is_ours(("10.0.0.2", 9), here, nodes)
    assert not socket_owner.is_ours(("10.0.0.3", 9), here, nodes)
    # From this machine, by a process that has ended by now.
    assert not socket_owner.is_ours(("10.0.0.1", 9), here, nodes)


def test_a_store_refuses_values_beyond_its_size_limit(where, monkeypatch):
    monkeypatch.setattr(horovod_store, "MOST", 1_000)
    port = ask(*where, do="meet", key="full")["port"]

    def put(path, value):
        url = f"http://127.0.0.1:{port}/{path}"
        urllib.request.urlopen(urllib.request.Request(url, data=value, method="PUT")).close()

    put("scope/kept", b"value")
    for path, value in (("scope/large", b"x" * 1_000), ("x" * 1_000, b"")):
        with pytest.raises(OSError):
            put(path, value)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/scope/kept") as reply:
        assert reply.read() == b"value"


def test_a_rank_that_could_not_say_that_it_left_is_not_counted_in_the_next_run():
    made = Rendezvous("127.0.0.1", lambda seconds, call: None, lambda peer, here: True)
    gather = {"do": "gather", "topic": "t", "round": None, "size": 2}
    made.take(Asked(**gather, rank=1, value="stale"))
    made.forget_arrivals()
    here, there = Asked(**gather, rank=0, value=0), Asked(**gather, rank=1, value=1)
    made.take(here)
    assert not here.answered
    made.take(there)
    assert here.answered["values"] == there.answered["values"] == [0, 1]
