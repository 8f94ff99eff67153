"""Sessions over the connections of a cluster: how messages are packed, as its files say."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_client.session import Session
from traitlets.log import get_logger


def session_for(connection: Mapping[str, Any]) -> Session:
    """A session that packs and signs messages as the file says that `connection` was read from."""
    with unsigned_as_encrypted():
        return Session(
            key=connection["key"].encode(),
            signature_scheme=connection["signature_scheme"],
            packer=connection["pack"],
            unpacker=connection["unpack"],
        )


@contextlib.contextmanager
def unsigned_as_encrypted() -> Iterator[None]:
    """Silence jupyter_client's warning that messages are not signed.

    They need no signature: our connections are encrypted by CURVE, with keys that only files of
    mode 0600 hold. Nothing else that is logged is hidden.
    """
    logger = get_logger()
    hide = _Unsigned()
    logger.addFilter(hide)
    try:
        yield
    finally:
        logger.removeFilter(hide)


class _Unsigned(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Message signing is disabled")
