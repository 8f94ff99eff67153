"""Unregisters ranks that are gone from the controller, so that their ids are free."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from jupyter_client.session import Session

REPLY_TIMEOUT_MS = 500


def unregister(engine_file: Path, ranks: Sequence[int], seconds: float = 5.0) -> bool:
    """Unregister `ranks`, whose processes have ended, from the controller; False if it does not
    confirm all of them within `seconds`.

    By itself it would miss their heartbeats only after a minute, and give restarted ranks other
    ids.
    """
    try:
        about: dict[str, Any] = json.loads(engine_file.read_text())
    except (OSError, ValueError):
        return False
    session = _session_for(about)
    deadline = time.monotonic() + seconds
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.LINGER = socket.SNDHWM = 0  # neither sending nor closing blocks
        if about.get("curve_serverkey"):
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.curve_serverkey = about["curve_serverkey"].encode()
        socket.connect(f"{about['interface']}:{about['registration']}")
        while time.monotonic() < deadline:
            for rank in ranks:
                session.send(socket, "unregistration_request", content={"id": rank})
            # It handles requests in order: the reply to this one shows the result of the others.
            session.send(socket, "connection_request")
            if socket.poll(REPLY_TIMEOUT_MS):
                _, frames = session.feed_identities(socket.recv_multipart())
                content = session.deserialize(frames)["content"]
                ranks = [rank for rank in ranks if str(rank) in content.get("engines", {})]
                if not ranks:
                    return True
    return False


def _session_for(about: dict[str, Any]) -> Session:
    """Return a session that packs and signs messages as the engines' connection file says."""
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
