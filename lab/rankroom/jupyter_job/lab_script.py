"""The batch job: slurm/lab.sbatch, with its first part replaced by settings of a site's profile."""

from __future__ import annotations

import shlex
from pathlib import Path

from rankroom.scheduler.site import Site, expand, shipped_folder

JOB_NAME = "lab"  # the job's name
LAST_LOG_LINE = "JupyterLab has ended."  # the last line of the log, unless the job has failed
SUBMITTED_FROM = "$USER@${SLURM_SUBMIT_HOST:-$PBS_O_HOST}"
_SECOND_PART = "# -- 2."  # begins the second part of slurm/lab.sbatch


def commands(site: Site, labs: str) -> list[str]:
    """Return the shell lines that the job runs within the site's environment; `labs` is the folder
    for labs' files."""
    return [
        f'python="{expand(site.environment.python)}"',
        f"login={shlex.quote(site.login) if site.login else SUBMITTED_FROM}",
        f"ssh_to_nodes={'yes' if site.ssh_to_nodes else 'no'}",
        f"labs={shlex.quote(labs)}",
        "",
        *template().read_text("utf-8").partition(_SECOND_PART)[2].splitlines()[1:],
    ]


def template() -> Path:
    """Return the path of slurm/lab.sbatch: in the installed package, or else in the checkout."""
    return shipped_folder().parent / "lab.sbatch"
