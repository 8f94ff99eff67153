"""Ranks that are gone are unregistered from the controller all at once."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import zmq

from rankroom.supervisor.processes import hub

ABOUT = {
    "interface": "tcp://127.0.0.1", "key": "", "pack": "json", "unpack": "json",
    "signature_scheme": "hmac-sha256",
}  # fmt: skip


class Controller:
    """A controller that forgets engines that are unregistered; if `deaf`, it never replies."""

    def __init__(self, folder: Path, engines: set[int], deaf: bool = False) -> None:
        self.engines = engines
        self.peers: set[bytes] = set()
        self._deaf = deaf
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.file = folder / "engine.json"
        self.file.write_text(json.dumps(ABOUT | {"registration": port}))
        self._session = hub._session_for(ABOUT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            if not self._socket.poll(20):
                continue
            (peer,), frames = self._session.feed_identities(self._socket.recv_multipart())
            said = self._session.deserialize(frames)
            self.peers.add(peer)
            if said["msg_type"] == "unregistration_request":
                self.engines.discard(said["content"]["id"])
            elif not self._deaf:
                known = {str(rank): "" for rank in self.engines}
                about = {"engines": known}
                self._session.send(self._socket, "connection_reply", about, ident=peer)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close(0)


@pytest.fixture
def made(tmp_path: Path):
    controllers: list[Controller] = []

    def make(*args, **kwargs) -> Controller:
        controllers.append(Controller(tmp_path, *args, **kwargs))
        return controllers[-1]

    yield make
    for each in controllers:
        each.close()


def test_many_ranks_are_unregistered_over_one_connection(made):
    controller = made({*range(2000)})
    assert hub.unregister(controller.file, range(1, 2000), 60)
    assert controller.engines == {0} and len(controller.peers) == 1


def test_unregistering_waits_only_once_for_an_unresponsive_controller(made):
    controller = made({0, 1, 2}, deaf=True)
    begun = time.monotonic()
    assert not hub.unregister(controller.file, [0, 1, 2], 0.1)
    assert time.monotonic() - begun < 3 * hub.REPLY_TIMEOUT_MS / 1000
