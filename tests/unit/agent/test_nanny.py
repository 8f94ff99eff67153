"""The process beside a rank ends when its rank has, whichever other process is gone by then."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq
from traitlets.config import Config

WITHIN_S = 30


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of a rank."""
    made = subprocess.Popen(["sleep", "1000"])
    yield made
    made.kill()
    made.wait()


@pytest.mark.parametrize("controller_is_there", [True, False])
def test_it_ends_with_its_rank(
    context: zmq.Context[zmq.Socket[bytes]],
    rank: subprocess.Popen[bytes],
    controller_is_there: bool,
):
    """Also when the rank's last reply is to a controller that has died, and will never be read."""
    control = context.socket(zmq.ROUTER)
    control.identity = b"controller"
    port = control.bind_to_random_port("tcp://127.0.0.1")
    hub = context.socket(zmq.ROUTER)
    about = {
        "pid": rank.pid, "engine_id": 0, "identity": b"rank", "log_level": 30,
        "control_url": f"tcp://127.0.0.1:{port}",
        "registration_url": f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}",
        "curve_serverkey": None, "curve_publickey": None, "curve_secretkey": None,
        "config": Config({"Session": {"key": b"key"}}),
    }  # fmt: skip
    nanny = subprocess.Popen(
        [sys.executable, "-m", "rankroom.agent.nanny"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "RANKROOM_SUPERVISOR": str(os.getpid())},
    )  # fmt: skip
    try:
        assert nanny.stdin is not None and nanny.stdout is not None
        nanny.stdin.write(pickle.dumps(about))
        nanny.stdin.close()
        replies = context.socket(zmq.DEALER)
        replies.connect(nanny.stdout.readline().decode().strip())
        replies.send_multipart([b"controller", b"a reply"])
        assert control.poll(WITHIN_S * 1000)
        assert control.recv_multipart() == [b"rank", b"a reply"]
        if not controller_is_there:
            monitor = control.get_monitor_socket(zmq.EVENT_CLOSED)
            control.unbind(f"tcp://127.0.0.1:{port}")
            assert monitor.poll(WITHIN_S * 1000)
            control.disable_monitor()
            control.close(linger=0)
            replies.send_multipart([b"controller", b"another"])
        rank.kill()
        rank.wait()
        nanny.wait(WITHIN_S)
    finally:
        nanny.kill()
        nanny.wait()
