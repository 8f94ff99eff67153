"""One notebook cell on every rank, with each rank's log and timeline under it.

Importing this loads nothing else: a rank, a kernel and the Jupyter server each load what they use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankroom.cluster.local import Cluster as Cluster
    from rankroom.rank.deadline import on_time_limit as on_time_limit
    from rankroom.rank.deadline import time_left as time_left
    from rankroom.reporting.metrics import log as log
    from rankroom.reporting.spans import span as span
    from rankroom.run.run import Run as Run

__version__ = "0.2.0"
_LAZY = {
    "Cluster": "rankroom.cluster.local",
    "Run": "rankroom.run.run",
    "log": "rankroom.reporting.metrics",
    "on_time_limit": "rankroom.rank.deadline",
    "span": "rankroom.reporting.spans",
    "time_left": "rankroom.rank.deadline",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext rankroom`: add the magics to this notebook."""
    from rankroom.notebook.magics import load_ipython_extension

    load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext rankroom`: cells run in the notebook's kernel again; the magics stay."""
    from rankroom.notebook.magics import unload_ipython_extension

    unload_ipython_extension(shell)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "rankroom.server"}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "rankroom"}]
