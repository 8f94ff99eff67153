"""One open ssh connection to a login host, shared by all processes of the user on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from rankroom import config
from rankroom.errors import SshError
from rankroom.ssh import command, master
from rankroom.ssh.failures import NETWORK_REASONS, TRANSIENT_REASONS, explain
from rankroom.ssh.login import AUTHENTICATION_TIMEOUT_S, at_a_terminal, log_in
from rankroom.ssh.socket_folder import control_path
from rankroom.system import commands
from rankroom.system.file_lock import locked
from rankroom.system.polling import skip_repeats

ConnectionState = Literal["open", "lost", "asks"]
Tell = Callable[[ConnectionState, str], None]

MAX_LOGIN_ATTEMPTS = 10  # attempts while a server has too many logins at once
CONNECT_TIMEOUT_S = 15.0
# Timeout of retries: one that began while the network was down retransmits ever more rarely, so
# short ones find it up again sooner.
RECONNECT_TIMEOUT_S = 2.0
POLL_INTERVAL_S = 0.5
REFUSED_RETRY_DELAY_S = 30.0
MAX_RETRY_DELAY_S = 600.0
# A server's reply to more commands at once than it allows on one connection (10 by default).
SESSION_REFUSED = "Session open refused by peer"
MAX_SESSION_ATTEMPTS = 12


class SshConnection:
    """The connection to `login`, shared by this user's processes. It stays open while in use, and
    for a while after that.

    With `node`, it leads to a node behind that host, through the open connection to the host.
    """

    def __init__(self, login: str, terminal: bool | None = None, node: str = "") -> None:
        self.name = node or login
        self._login, self._node = login, node
        self._ssh = command.ssh()
        self._terminal = at_a_terminal() if terminal is None else terminal
        self._forwards: list[tuple[int | Path, str, int]] = []
        self._lost: SshError | None = None  # while `keep` waits to try again

    @property
    def socket(self) -> Path:
        """The control socket of the open connection."""
        return control_path(self._ssh, f"{self._login} {self._node}".strip())

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        input: str | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> commands.Completed:
        """Run `argv` on the host, opening the connection if necessary. Raises SshError."""
        if self._lost:
            raise self._lost  # `keep` is reconnecting already
        await self.open()
        typed = commands.without_env(argv)[0]
        for attempt in range(MAX_SESSION_ATTEMPTS):
            words = command.through(self._ssh, self.socket, self._login, argv)
            done = await commands.run(words, timeout=timeout, input=input, on_line=on_line)
            if done.returncode != 255 or SESSION_REFUSED not in done.output:
                break
            await _some_time(attempt)
        else:
            raise SshError(FULL.format(host=self.name, command=typed, said=done.tail(3)), "full")
        # A command's own exit status may be 255, too.
        if done.returncode == 255 and not await self.alive():
            raise SshError(CUT.format(host=self.name, command=typed, said=done.tail(3)), "lost")
        return done

    async def open(self, tell: Tell | None = None, connect_s: float = CONNECT_TIMEOUT_S) -> None:
        """Open the connection if necessary. `tell("asks", text)` is called with ssh's questions.
        Raises SshError."""
        if await self.alive():
            return
        # One process at a time, so that the user is asked only once.
        longest_s = (
            config.ask_seconds() + CONNECT_TIMEOUT_S + AUTHENTICATION_TIMEOUT_S
        )  # later, its holder is ignored
        async with locked(self.socket.with_suffix(".lock"), longest_s):
            for attempt in range(MAX_LOGIN_ATTEMPTS):
                if await self.alive():
                    return
                try:
                    await self._connect(tell, connect_s)
                except SshError as trouble:
                    if trouble.why not in TRANSIENT_REASONS or attempt + 1 == MAX_LOGIN_ATTEMPTS:
                        raise
                    await _some_time(attempt)

    async def close(self) -> None:
        """Cancel the forwards of this object. The connection itself stays open for a while."""
        for local, host, port in list(self._forwards):
            with contextlib.suppress(SshError):
                await self.unforward(local, host, port)

    async def end(self) -> None:
        """Close the connection for all processes; the next one to open it has to log in again."""
        await self._ask("exit")

    async def alive(self) -> bool:
        """Whether the connection is open. A dead one is noticed within 5 s, or 30 s if the user's
        ServerAliveInterval is longer."""
        return await master.alive(self.socket)

    async def forward(self, local: int | Path, host: str, port: int) -> None:
        """Forward a port of loopback or a Unix socket here to `port` of `host`, as seen from there.

        Raises SshError when `local` is taken, or the connection is not open.
        """
        words = command.forwarding(local, host, port)
        done = await self._ask("forward", "-L", words)
        if not done.ok:
            if not await self.alive():
                raise self._lost or SshError(CLOSED.format(host=self.name), "closed")
            raise SshError(TAKEN.format(local=local, host=host, port=port, said=done.tail(3)))
        if (local, host, port) not in self._forwards:
            self._forwards.append((local, host, port))

    async def unforward(self, local: int | Path, host: str, port: int) -> None:
        """Cancel a forward."""
        with contextlib.suppress(ValueError):
            self._forwards.remove((local, host, port))
        await self._ask("cancel", "-L", command.forwarding(local, host, port))
        if isinstance(local, Path):
            local.unlink(missing_ok=True)

    async def keep(self, tell: Tell) -> NoReturn:
        """Keep the connection and its forwards open until cancelled; `tell` state changes."""
        pause, tries = POLL_INTERVAL_S, 0
        tell = skip_repeats(tell)
        try:
            while True:
                try:
                    slow = tries % 4 == 3 and self._lost is not None and self._lost.why == "slow"
                    await self.open(
                        tell, CONNECT_TIMEOUT_S if slow or not tries else RECONNECT_TIMEOUT_S
                    )
                    await self._hold(tell)
                    tries, pause = 1, POLL_INTERVAL_S
                    tell("lost", LOST.format(host=self.name))
                except SshError as trouble:
                    tries += 1
                    self._lost = trouble
                    tell("lost", str(trouble))
                    refused = trouble.why not in NETWORK_REASONS | TRANSIENT_REASONS
                    pause = (
                        min(max(2 * pause, REFUSED_RETRY_DELAY_S), MAX_RETRY_DELAY_S)
                        if refused
                        else POLL_INTERVAL_S
                    )
                await self._until_open(pause)
        finally:
            self._lost = None

    async def _hold(self, tell: Tell) -> None:
        """Renew the forwards, and wait until the open connection is gone."""
        async with master.connected(self.socket) as reader:
            if reader is None:
                return
            self._lost = None
            taken = []
            for local, host, port in list(self._forwards):
                try:
                    await self.forward(local, host, port)
                except SshError as trouble:
                    taken.append(str(trouble))
            tell("open", "; ".join(taken))
            await master.gone(reader)
        self._lost = SshError(LOST.format(host=self.name), "lost")

    async def _until_open(self, seconds: float) -> None:
        """Wait for `seconds`, or until another process has opened the connection."""
        for _ in range(max(1, round(seconds / POLL_INTERVAL_S))):
            if await self.alive():
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _connect(self, tell: Tell | None, connect_s: float) -> None:
        settings = await self._settings()
        ask_s = 0.0
        if not self._node and command.leads_through(settings):
            # ssh's timeout for the host also covers the time to answer a jump host's questions.
            ask_s = config.ask_seconds()
        words = command.master(self._ssh, self.socket, self._login, connect_s + ask_s, settings)
        if self._node:
            login = control_path(self._ssh, self._login)
            words[-3:-3] = command.behind(self._ssh, login, self._login, self._node)
        done = await log_in(
            words, self.name, self._terminal, connect_s,
            lambda text: tell("asks", text) if tell else None,
        )  # fmt: skip
        if not done.ok or not await self.alive():
            raise explain(self.name, done)

    async def _settings(self) -> str:
        """Return ssh's configuration for this host; empty if ssh cannot be run."""
        with contextlib.suppress(OSError):  # no ssh: the next command that runs it reports that
            words = command.settings(self._ssh, self._login)
            return (await commands.run(words, timeout=CONNECT_TIMEOUT_S)).output
        return ""

    async def _ask(self, what: str, *more: str) -> commands.Completed:
        return await commands.run(
            command.ask(self._ssh, self.socket, self.name, what, *more), timeout=CONNECT_TIMEOUT_S
        )


async def _some_time(attempt: int) -> None:
    """Sleep longer with each attempt, with jitter, so that processes do not retry in step."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * (attempt + 1))


CLOSED = "the connection to {host} is not open: open it first"
FULL = (
    "{host} accepts no more commands on one connection, so `{command}` did not run there: wait for "
    "others to end, or ask the site for a higher MaxSessions; ssh said:\n{said}"
)
CUT = (
    "the connection to {host} was lost while `{command}` ran there, and its exit status is not "
    "known; its output ends with:\n{said}"
)
LOST = "the connection to {host} is lost; reconnecting as soon as possible"
TAKEN = "cannot forward {local} to {host}:{port}: it may be taken; choose another. ssh said: {said}"
