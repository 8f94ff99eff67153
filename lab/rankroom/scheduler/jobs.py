"""A scheduler's job, whichever scheduler it is: how it stands, in words, and its script's body."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rankroom.site import Site, expand

State = Literal["pending", "running", "ending", "ended", "gone"]


@dataclass(frozen=True)
class JobStatus:
    """How a job stands. `reason` is why it waits or how it ended; `start` when it may begin.

    `never` says that it will wait for ever as it is.
    """

    id: str
    state: State
    reason: str = ""
    start: str = ""
    nodes: str = ""
    left: int | None = None  # seconds until its time is over
    never: bool = False

    @property
    def words(self) -> str:
        """One line for people."""
        if self.state == "pending":
            when = f", expected to start at {self.start}" if self.start else ""
            end = ": it will never start like this" if self.never else when
            return f"waits in the queue ({self.reason or 'no reason given'}){end}"
        if self.state == "running":
            return f"runs on {self.nodes}" if self.nodes else "runs"
        if self.state == "gone":
            return "is not known to the scheduler any more"
        return f"has ended ({self.reason})" if self.reason else "has ended"


def body(site: Site, commands: Sequence[str]) -> list[str]:
    """What follows a script's header: the environment of the site, then `commands`."""
    environment = site.environment
    lines = ["set -e"]
    if environment.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, environment.modules))}")
    lines += environment.setup
    if environment.venv:
        lines.append(f'source "{expand(environment.venv)}/bin/activate"')
    if environment.conda:
        lines.append('eval "$(conda shell.bash hook)"')
        lines.append(f'conda activate "{expand(environment.conda)}"')
    if site.interface:
        name = shlex.quote(site.interface)
        lines.append(f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}")
        lines.append(f"export HOROVOD_GLOO_IFACE={name}")
    return ["", *lines, "", *commands, ""]


def contained(site: Site, argv: Sequence[str]) -> list[str]:
    """`argv` as it is run within the site's container, or as it is without one."""
    container = site.container
    how = {
        "": [],
        "shifter": ["shifter", f"--image={container.image}", *container.options],
        "apptainer": ["apptainer", "exec", "--nv", *container.options, container.image],
        "podman-hpc": [
            "podman-hpc", "run", "--rm", "--gpu", "--network=host", "--ipc=host",
            *container.options, container.image,
        ],
        "charliecloud": ["ch-run", *container.options, container.image, "--"],
    }  # fmt: skip
    return [*how[container.runtime], *argv]
