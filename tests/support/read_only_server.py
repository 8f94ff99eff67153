"""A server with made-up clusters, to which collaborators have read-only access."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_server.auth import Authorizer

import made_up_clusters
from rankroom import config

ASKED = "asked"  # a file beside the home: what the authorizer was asked about Rankroom


class ReadOnly(Authorizer):
    """Allows everybody to read, and nobody anything else."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        if "/rankroom/" in handler.request.path:
            with config.home().with_name(ASKED).open("a") as file:
                file.write(f"{action} {resource}\n")
        return action == "read"


if __name__ == "__main__":
    sys.argv.append("--ServerApp.authorizer_class=read_only_server.ReadOnly")
    made_up_clusters.start()
