"""The one output of a distributed cell: shown once, then replaced as the run goes on."""

from __future__ import annotations

import sys
from typing import Any

from IPython.display import display as show


class CellOutput:
    """A display that can be replaced.

    In an IPython kernel, the messages are sent directly: display() would first flush stdout and
    stderr through another thread, which takes twice as long as all the rest of an empty cell.
    """

    def __init__(self, shell: Any, name: str) -> None:
        self._shell = shell
        self._name = name
        self._shown = False

    def show(self, bundle: dict[str, Any]) -> None:
        """Show `bundle`, a MIME bundle, in place of what was shown before."""
        update, self._shown = self._shown, True
        kernel = getattr(self._shell, "kernel", None)
        if (
            kernel is None
            or getattr(kernel, "iopub_socket", None) is None
            or _captured(self._shell)
        ):
            again = {"update": True} if update else {}
            show(bundle, raw=True, display_id=self._name, **again)
            return
        content = {"data": bundle, "metadata": {}, "transient": {"display_id": self._name}}
        publisher = self._shell.display_pub
        kind = "update_display_data" if update else "display_data"
        publisher.session.send(
            publisher.pub_socket, kind, content, parent=publisher.parent_header,
            ident=publisher.topic,
        )  # fmt: skip


def _captured(shell: Any) -> bool:
    """Return whether %%capture or ipywidgets' Output captures output: it gets only what is passed
    to display()."""
    publisher = shell.display_pub
    return (
        type(publisher).__name__ != "ZMQDisplayPublisher"
        or bool(getattr(publisher, "_hooks", None))
        or type(sys.stdout).__name__ != "OutStream"
    )
