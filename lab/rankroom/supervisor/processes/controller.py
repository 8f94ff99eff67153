"""The controller of a cluster: ipyparallel's, which ends when the cluster's supervisor is gone."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

# Only a task queue would use NumPy, which takes a fifth of the time of all these imports.
if __name__ == "__main__":
    sys.modules["numpy"] = None  # type: ignore[assignment]

import zmq
from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController
from zmq.eventloop.zmqstream import ZMQStream

from rankroom.errors import RankroomError
from rankroom.system import process_tree
from rankroom.system.internals import demand

# What is overridden or called of ipyparallel's controller here.
CONTROLLER_INTERNALS = (
    "init_schedulers", "to_work_dir", "client_url", "engine_url", "bind", "session", "loop",
)  # fmt: skip
HEART_MONITOR_INTERNALS = ("beat", "responses", "period")
CALM_MS = 1000  # between two heartbeats while all ranks respond


class Controller(IPController):
    """ipyparallel's controller, with a listener where its task queue would be.

    There is no queue, and a client that submits a task gets an error. If nothing listened on its
    ports, every client and rank would try to connect ten times a second, forever; and a program
    that happened to listen there next would get these connections. Gloo sometimes did: `hvd.init()`
    then waited 30 s for a rank that never came.
    """

    def init_schedulers(self) -> None:
        super().init_schedulers()
        self._listeners: list[Any] = []
        for url in (self.client_url("task"), self.engine_url("task")):
            listener = self.context.socket(zmq.ROUTER)
            self.bind(listener, url)
            self._listeners.append(ZMQStream(listener, self.loop))
        self._listeners[0].on_recv(self._refuse)

    def _refuse(self, parts: list[bytes]) -> None:
        """Answer a client's task with an error: without one, the client would wait forever."""
        client, parts = self.session.feed_identities(parts)
        try:
            asked = self.session.deserialize(parts)
        except ValueError:  # not a message of this cluster
            return
        content = {
            "status": "error", "ename": "UsageError", "evalue": NO_QUEUE, "traceback": [NO_QUEUE],
            "engine_info": {},
        }  # fmt: skip
        kind = asked["msg_type"].replace("_request", "_reply")
        self.session.send(self._listeners[0], kind, content, parent=asked, ident=client)

    def to_work_dir(self) -> None:
        """Stay in this folder: ipyparallel would put the other one first on `sys.path`."""


class HeartMonitor(heartmonitor.HeartMonitor):
    """ipyparallel's heart monitor, with fewer heartbeats while all ranks respond.

    A rank is registered after a heartbeat, so they are frequent while one is missing; after that,
    each one only costs every rank a moment of its main thread.
    """

    def beat(self) -> None:
        all_beat = len(self.responses) >= int(os.environ["RANKROOM_SIZE"])
        super().beat()
        self.caller.callback_time = max(CALM_MS, self.period) if all_beat else self.period


def follow(supervisor: int) -> None:
    """End this process and its children once the process `supervisor` has ended."""
    while not process_tree.ended_within(supervisor, 3600.0):
        pass
    process_tree.end(process_tree.descendants([os.getpid()]))
    os._exit(1)


def main() -> None:
    """Run the controller of the cluster that the options name, as a child of its supervisor."""
    try:
        demand("ipyparallel", IPController, CONTROLLER_INTERNALS)
        demand("ipyparallel", heartmonitor.HeartMonitor, HEART_MONITOR_INTERNALS)
    except RankroomError as error:
        sys.exit(str(error))
    heartmonitor.HeartMonitor = HeartMonitor  # also in the separate process that it runs in
    # Not os.getppid(): the supervisor may have ended while this was imported.
    supervisor = int(os.environ["RANKROOM_SUPERVISOR"])
    threading.Thread(target=follow, args=(supervisor,), daemon=True).start()
    Controller.launch_instance()


NO_QUEUE = (
    "this cluster has no task queue, so load-balanced views do not work: use a direct view "
    "(`client[:]`) or a `%%distributed` cell"
)

if __name__ == "__main__":
    main()
