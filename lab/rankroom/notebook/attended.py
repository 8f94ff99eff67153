"""Whether there is somebody who can answer what a rank asks."""

from __future__ import annotations

from typing import Any


def is_attended(shell: Any) -> bool:
    """Whether the cell that runs now came from a front end with somebody in front of it.

    Jupyter's messages say of each cell whether its sender can ask the user something. JupyterLab,
    Notebook, VS Code and consoles can; nbconvert, papermill and batch jobs, which run cells by
    nbclient, cannot. Nothing else that a kernel hears tells them apart: what shows the output of a
    run does not speak to the kernel, but to the Jupyter server.
    """
    kernel = getattr(shell, "kernel", None)
    request = kernel.get_parent() if kernel is not None else {}
    return bool(request.get("content", {}).get("allow_stdin"))
