"""ssh's command lines; nothing is run here.

The user's own configuration applies; these options only add what a shared connection needs.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rankroom.errors import SshError

_NODE_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
# An unused connection is closed after this many seconds; the next one has to log in again.
IDLE_TIMEOUT_S = 600
# A dead connection is noticed after three of these intervals. The user's own interval is used, up
# to a limit: most are meant to keep a connection from being closed, which any interval does.
ALIVE_INTERVAL_S, MAX_ALIVE_INTERVAL_S = 1, 10
# Relays data between its standard streams and the ssh server of the host $0; ends when one of the
# two does. A login shell other than bash may parse it first.
RELAY = 'exec 3<>"/dev/tcp/$0/22" || exit; cat <&3 & exec >&-; cat >&3; kill $(jobs -p)'


def ssh() -> str:
    """Return the user's ssh, or what RANKROOM_SSH names: a command line such as `ssh -F FILE`."""
    return os.environ.get("RANKROOM_SSH", "").strip() or "ssh"


def _words(command: str) -> list[str]:
    """Return the words of what RANKROOM_SSH names. Raises SshError."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise SshError(NO_COMMAND.format(command=command, error=error)) from None


def master(
    command: str, socket: Path, login: str, connect_s: float, settings: str = ""
) -> list[str]:
    """Return the command that opens the connection and leaves it open behind `socket`.

    `settings` is ssh's configuration for the host, as the command `settings` prints it.
    """
    own = re.search(r"^serveraliveinterval ([1-9]\d*)$", settings, re.MULTILINE)
    alive_s = min(int(own[1]), MAX_ALIVE_INTERVAL_S) if own else ALIVE_INTERVAL_S
    return [
        *_words(command),
        *_options(
            ControlMaster="auto",
            ControlPath=_path(socket),
            ControlPersist=str(IDLE_TIMEOUT_S),
            ServerAliveInterval=str(alive_s),
            ServerAliveCountMax="3",
            ConnectTimeout=f"{connect_s:.0f}",
            # The user's own forwards are for their terminal, and would conflict with each other.
            ClearAllForwardings="yes",
            StreamLocalBindUnlink="yes",
            RemoteCommand="none",
        ),
        *("-f", "-N", "-T", "-x", "--", login),
    ]


def settings(command: str, login: str) -> list[str]:
    """Return the command that prints ssh's configuration for this host, without connecting."""
    return [*_words(command), "-G", "--", login]


def leads_through(settings: str) -> bool:
    """Whether the connection to a host with these settings goes through a jump host or proxy."""
    return re.search(r"^proxy(jump|command) (?!none$)", settings, re.MULTILINE) is not None


def behind(command: str, socket: Path, login: str, node: str) -> list[str]:
    """Return the options that lead a connection through the open one to `login` on to `node`.

    It is relayed by a command there, as that host may not allow forwarding. Raises SshError if
    `node`, which comes from a scheduler and is seen by a shell, is not a valid host name.
    """
    if not _NODE_PATTERN.fullmatch(node):
        raise SshError(NO_NODE.format(node=node), "unknown host")
    hop = through(command, socket, login, ["bash", "-c", RELAY, node])
    # Escape percent signs, which ssh expands in ProxyCommand.
    words = [word.replace("%", "%%") for word in hop]
    return _options(HostName=node, HostKeyAlias=node, Port="22", ProxyCommand=shlex.join(words))


def through(command: str, socket: Path, login: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` over the open connection, and never opens one itself."""
    return [
        *_words(command),
        *_options(
            ControlMaster="no",
            ControlPath=_path(socket),
            ClearAllForwardings="yes",
            RemoteCommand="none",
            # If the shared connection is closed, ssh would open one for this command alone.
            ProxyCommand="false",
        ),
        *("-T", "-x", "--", login, _for_any_shell(argv)),
    ]


def _for_any_shell(argv: Sequence[str]) -> str:
    """Return a command line that any login shell can read."""
    line = shlex.join(argv)
    if "\n" not in line:
        return line
    # csh allows no line breaks in quotes.
    code = base64.b64encode(f"exec {line}".encode()).decode()
    return f'exec bash -c \'eval "$(printf %s "$0" | base64 -d)"\' {code}'


def ask(command: str, socket: Path, login: str, what: str, *more: str) -> list[str]:
    """Return the command that sends a request to the master process: exit, forward, cancel."""
    return [
        *_words(command),
        # Without the user's configuration, whose own forwards would be requested as well.
        *("-F", "none"),
        *_options(ControlPath=_path(socket)),
        *("-O", what, *more, "--", login),
    ]


def forwarding(local: int | Path, host: str, port: int) -> str:
    """Return the argument of -L: a port of loopback or a Unix socket here, and a port of `host`."""
    here = f"127.0.0.1:{local}" if isinstance(local, int) else _path(local).replace(":", "\\:")
    there = f"[{host}]" if ":" in host else host
    return f"{here}:{there}:{port}"


def _options(**options: str) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _path(path: Path) -> str:
    """Return a path as an ssh option, in which % has to be escaped."""
    return os.fspath(path).replace("%", "%%")


NO_COMMAND = "RANKROOM_SSH is {command!r}, which is no command line: {error}"
NO_NODE = "{node!r} is not a valid node name: check which nodes the scheduler gave to the job"
