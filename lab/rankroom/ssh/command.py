"""ssh's command lines, made without running anything.

The user's own configuration holds; these options only add what one shared line needs.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rankroom.errors import SshError

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
# A connection out of use ends after this many seconds, and with it what was authenticated.
IDLE_S = 600
# A dead link is noticed after three of these. The user's own may be longer, up to a limit: many are
# meant to keep a connection from being closed, which any pace does.
ALIVE_S, LONGEST_ALIVE_S = 1, 10
# Passes on what is between its standard streams and the ssh server of the host that is its $0; ends
# when one of the two does. A login shell that is no bash may read it first.
RELAY = 'exec 3<>"/dev/tcp/$0/22" || exit; cat <&3 & exec >&-; cat >&3; kill $(jobs -p)'


def ssh() -> str:
    """The user's ssh, or what RANKROOM_SSH names: a command line such as `ssh -F FILE`."""
    return os.environ.get("RANKROOM_SSH", "").strip() or "ssh"


def master(
    command: str, socket: Path, login: str, connect_s: float, settings: str = ""
) -> list[str]:
    """Opens the connection, and leaves it open behind a socket; `settings` are its host's."""
    own = re.search(r"^serveraliveinterval ([1-9]\d*)$", settings, re.MULTILINE)
    alive_s = min(int(own[1]), LONGEST_ALIVE_S) if own else ALIVE_S
    return [
        *shlex.split(command),
        *_options(
            ControlMaster="auto",
            ControlPath=_path(socket),
            ControlPersist=str(IDLE_S),
            ServerAliveInterval=str(alive_s),
            ServerAliveCountMax="3",
            ConnectTimeout=f"{connect_s:.0f}",
            # Theirs belong to their terminal, and would be in the way of each other.
            ClearAllForwardings="yes",
            StreamLocalBindUnlink="yes",
            RemoteCommand="none",
        ),
        *("-f", "-N", "-T", "-x", "--", login),
    ]


def settings(command: str, login: str) -> list[str]:
    """Says what ssh's configuration is for this host; connects to nothing."""
    return [*shlex.split(command), "-G", "--", login]


def leads_through(settings: str) -> bool:
    """Whether the way to a host with these settings is another program's: a jump, say."""
    return re.search(r"^proxy(jump|command) (?!none$)", settings, re.MULTILINE) is not None


def behind(command: str, socket: Path, login: str, node: str) -> list[str]:
    """What leads a connection on to a node, as the user of `login`, over the open connection to it.

    By a command there, as it may be a host that forwards nothing. Raises SshError where a
    scheduler's name of a node is none: a shell gets to see it.
    """
    if not _NODE.fullmatch(node):
        raise SshError(NO_NODE.format(node=node), "unknown host")
    hop = through(command, socket, login, ["bash", "-c", RELAY, node])
    # Its own percent signs come through ProxyCommand's reading.
    words = [word.replace("%", "%%") for word in hop]
    return _options(HostName=node, HostKeyAlias=node, Port="22", ProxyCommand=shlex.join(words))


def through(command: str, socket: Path, login: str, argv: Sequence[str]) -> list[str]:
    """Runs `argv` at the other end of the open connection; never opens a connection of its own."""
    return [
        *shlex.split(command),
        *_options(
            ControlMaster="no",
            ControlPath=_path(socket),
            ClearAllForwardings="yes",
            RemoteCommand="none",
            # Where the connection is closed, ssh would open a connection for this command alone.
            ProxyCommand="false",
        ),
        *("-T", "-x", "--", login, _for_any_shell(argv)),
    ]


def _for_any_shell(argv: Sequence[str]) -> str:
    """A command line for the login shell there, whichever that is."""
    line = shlex.join(argv)
    if "\n" not in line:
        return line
    # csh takes no line break between quotes.
    code = base64.b64encode(f"exec {line}".encode()).decode()
    return f'exec bash -c \'eval "$(printf %s "$0" | base64 -d)"\' {code}'


def ask(command: str, socket: Path, login: str, what: str, *more: str) -> list[str]:
    """Asks the process that holds the connection: exit, forward, cancel."""
    return [
        *shlex.split(command),
        # Without the user's file, whose own forwards would be asked for as well.
        *("-F", "none"),
        *_options(ControlPath=_path(socket)),
        *("-O", what, *more, "--", login),
    ]


def forwarding(local: int | Path, host: str, port: int) -> str:
    """What follows -L: a port of loopback or a Unix socket here, a port of a host there."""
    here = f"127.0.0.1:{local}" if isinstance(local, int) else _path(local).replace(":", "\\:")
    there = f"[{host}]" if ":" in host else host
    return f"{here}:{there}:{port}"


def _options(**options: str) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _path(path: Path) -> str:
    """As ssh takes it, to whom % begins a name of its own."""
    return os.fspath(path).replace("%", "%%")


NO_NODE = "{node!r} is no name of a node: look at what the scheduler says the job runs on"
