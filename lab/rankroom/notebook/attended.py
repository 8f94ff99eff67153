"""Who sent the cell that runs now: somebody who can answer, or a front end by itself."""

from __future__ import annotations

from typing import Any


def is_attended(shell: Any) -> bool:
    """Whether the cell that runs now came from a front end with somebody in front of it.

    Jupyter's messages say of each cell whether its sender can ask the user something. JupyterLab,
    Notebook, VS Code and consoles can; nbconvert, papermill and batch jobs, which run cells by
    nbclient, cannot. Nothing else that a kernel hears tells them apart: what shows the output of a
    run does not speak to the kernel, but to the Jupyter server.
    """
    return bool(_request(shell).get("allow_stdin"))


def is_silent(shell: Any) -> bool:
    """Whether a front end sent it for itself, as VS Code does to show variables."""
    return bool(_request(shell).get("silent"))


def _request(shell: Any) -> dict[str, Any]:
    """What was asked of the kernel; nothing in IPython without one."""
    kernel = getattr(shell, "kernel", None)
    asked: dict[str, Any] = kernel.get_parent().get("content", {}) if kernel is not None else {}
    return asked
