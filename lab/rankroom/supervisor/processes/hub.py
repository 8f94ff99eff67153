"""What the supervisor tells the controller: that a rank is gone, so that its id is free at once."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_client.session import Session

ANSWER_MS = 500


def unregister(engine_file: Path, rank: int, seconds: float = 5.0) -> bool:
    """Have the controller forget `rank`, whose process has ended; False if it does not answer.

    It would notice by missing heartbeats after a minute, and give the next rank another id.
    """
    import zmq  # here, as a supervisor does not need it until a rank is restarted

    try:
        about: dict[str, Any] = json.loads(engine_file.read_text())
    except (OSError, ValueError):
        return False
    session = _session_for(about)
    deadline = time.monotonic() + seconds
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.LINGER = 0
        if about.get("curve_serverkey"):
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.curve_serverkey = about["curve_serverkey"].encode()
        socket.connect(f"{about['interface']}:{about['registration']}")
        while time.monotonic() < deadline:
            session.send(socket, "unregistration_request", content={"id": rank})
            # It answers questions in order: this one is how its answer to the first is known.
            session.send(socket, "connection_request")
            if socket.poll(ANSWER_MS):
                _, frames = session.feed_identities(socket.recv_multipart())
                content = session.deserialize(frames)["content"]
                if str(rank) not in content.get("engines", {}):
                    return True
    return False


def _session_for(about: dict[str, Any]) -> Session:
    """A session that packs and signs messages as the engines' file says."""
    from jupyter_client.session import Session
    from traitlets.log import get_logger

    logger = get_logger()
    logger.addFilter(_not_that_it_is_unsigned)
    try:
        return Session(
            key=about["key"].encode(), signature_scheme=about["signature_scheme"],
            packer=about["pack"], unpacker=about["unpack"],
        )  # fmt: skip
    finally:
        logger.removeFilter(_not_that_it_is_unsigned)


def _not_that_it_is_unsigned(record: logging.LogRecord) -> bool:
    # Our connections are encrypted by CURVE, with keys that only files of mode 0600 hold.
    return not record.getMessage().startswith("Message signing is disabled")
