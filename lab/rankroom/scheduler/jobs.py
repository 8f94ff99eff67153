"""A job of any scheduler: its status, in words, and the body of its script."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rankroom.scheduler.site import Site, expand
from rankroom.scheduler.step_launcher import PYTHON_VARIABLE
from rankroom.system import python_command

State = Literal["pending", "running", "ending", "ended", "gone"]


@dataclass(frozen=True)
class JobStatus:
    """The status of a job. `reason` is why it is pending or how it ended.

    Times are epoch seconds, 0 if not known: `expected` is when a pending job may start, `until`
    when the time of a running one is over. `never` says that it will never start as it is, once
    that has been reported for `patience` seconds. A running job may be suspended. The scheduler
    said so `at` this time.
    """

    id: str
    state: State
    reason: str = ""
    expected: float = 0.0
    nodes: str = ""
    until: float = 0.0
    never: bool = False
    name: str = ""
    patience: float = 0.0
    is_suspended: bool = False
    at: float = field(default=0.0, compare=False)

    @property
    def words(self) -> str:
        """The status in one line, for users."""
        if self.state == "pending":
            when = f", expected to start {moment(self.expected)}" if self.expected else ""
            never = self.never and not self.patience
            end = ": as submitted, it will never start" if never else when
            return f"is waiting in the queue ({self.reason or 'no reason given'}){end}"
        if self.is_suspended:
            return f"is suspended on {self.nodes}" if self.nodes else "is suspended"
        if self.state == "running":
            return f"runs on {self.nodes}" if self.nodes else "runs"
        if self.state == "gone":
            return "is no longer known to the scheduler"
        words = "is ending" if self.state == "ending" else "has ended"
        return f"{words} ({self.reason})" if self.reason else words


def moment(then: float) -> str:
    """Format a time in the local zone: `at 14:02` or, on another day, `on Tue 24 Nov, 14:02`."""
    at = time.localtime(then)
    if at[:3] == time.localtime()[:3]:
        return time.strftime("at %H:%M", at)
    return time.strftime("on %a %d %b, %H:%M", at)


def body(site: Site, commands: Sequence[str]) -> list[str]:
    """Return what follows a script's header: the site's environment, then `commands`."""
    lines = environment(site)
    if site.container.image:
        # The supervisor runs on the environment's Python, the ranks on the container's.
        python = shlex.join(contained(site, [site.container.python]))
        lines.append(f"export {PYTHON_VARIABLE}={shlex.quote(python)}")
    return ["", "set -e", *lines, "", *commands, ""]


def environment(site: Site) -> list[str]:
    """Return the shell lines that make Python with Rankroom available, on any node of the site."""
    given, lines = site.environment, []
    if given.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, given.modules))}")
    lines += given.setup
    if given.venv:
        lines.append(f'source "{expand(given.venv)}/bin/activate"')
    if given.conda:
        lines.append('eval "$(conda shell.bash hook)"')
        lines.append(f'conda activate "{expand(given.conda)}"')
    if site.interface:
        name = shlex.quote(site.interface)
        lines.append(f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}")
        lines.append(f"export HOROVOD_GLOO_IFACE={name}")
    if given.preload:
        lines.append(f"export RANKROOM_PRELOAD={shlex.quote(given.preload)}")
    return lines


def in_environment(site: Site, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the site's environment on a login node.

    What the environment's lines print goes to standard error; standard output is `argv`'s alone.
    """
    home = 'case $1 in "~/"*) set -- "$HOME/${1#"~/"}" "${@:2}" ;; esac'  # a Python's path
    run = 'exec 1>&3 3>&- "$@"'
    safe = f"export {python_command.SHELL_ASSIGNMENTS}"
    lines = "\n".join(["exec 3>&1 1>&2", "set -e", *environment(site), home, safe, run])
    return ["bash", "-lc", lines, "bash", *argv]


def login_shell(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a login shell, where only that knows the commands; its
    output starts on a new line, whatever the shell has printed before."""
    return ["bash", "-lc", 'echo; exec "$@"', "bash", *argv]


def contained(site: Site, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the site's container, or `argv` if there is none."""
    container = site.container
    how = {
        "": [],
        "shifter": ["shifter", f"--image={container.image}", *container.options],
        "apptainer": ["apptainer", "exec", "--nv", *container.options, container.image],
        "podman-hpc": [
            # An agent reads its orders from stdin.
            "podman-hpc", "run", "--rm", "--interactive", "--gpu", "--network=host", "--ipc=host",
            "--env-host", *container.options, container.image,
        ],
        "charliecloud": ["ch-run", *container.options, container.image, "--"],
    }  # fmt: skip
    return [*how[container.runtime], *argv]
