"""The batch job: slurm/lab.sbatch with what a site's profile says in place of its first part."""

from __future__ import annotations

import shlex
from pathlib import Path

from rankroom.scheduler.site import Site, expand, shipped_folder

NAME = "lab"  # of the job
OVER = "JupyterLab is over."  # the last line of its log, unless it has failed
SUBMITTED_FROM = "$USER@${SLURM_SUBMIT_HOST:-$PBS_O_HOST}"
_PART = "# -- 2."  # where that file's second part begins


def commands(site: Site, labs: str) -> list[str]:
    """What the job runs within the site's environment; `labs` is the folder for servers' files."""
    return [
        f'python="{expand(site.environment.python)}"',
        f"login={shlex.quote(site.login) if site.login else SUBMITTED_FROM}",
        f"ssh_to_nodes={'yes' if site.ssh_to_nodes else 'no'}",
        f"labs={shlex.quote(labs)}",
        "",
        *template().read_text("utf-8").partition(_PART)[2].splitlines()[1:],
    ]


def template() -> Path:
    """slurm/lab.sbatch: in the package when it was installed, else in the checkout."""
    return shipped_folder().parent / "lab.sbatch"
