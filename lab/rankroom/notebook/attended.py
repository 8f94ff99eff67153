"""Where the current cell came from: a user who can answer prompts, or a program."""

from __future__ import annotations

from typing import Any


def is_attended(shell: Any) -> bool:
    """Return whether the current cell came from a front end with a user who can be asked.

    Jupyter's request for each cell says whether its sender can ask the user for input. JupyterLab,
    Notebook, VS Code and consoles can; nbconvert, papermill and batch jobs, which run cells with
    nbclient, cannot. Nothing else tells the kernel which of them it is: the view of a run does not
    talk to the kernel, but to the Jupyter server.
    """
    return bool(_request(shell).get("allow_stdin"))


def is_silent(shell: Any) -> bool:
    """Return whether a front end sent the current code for itself, as VS Code does to show
    variables."""
    return bool(_request(shell).get("silent"))


def _request(shell: Any) -> dict[str, Any]:
    """Return the content of the kernel's current request; empty in IPython without a kernel."""
    kernel = getattr(shell, "kernel", None)
    asked: dict[str, Any] = kernel.get_parent().get("content", {}) if kernel is not None else {}
    return asked
