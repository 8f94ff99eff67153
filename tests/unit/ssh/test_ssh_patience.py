"""How long ssh waits for a silent connection, and for another process that is logging in."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from pathlib import Path

import pytest

from rankroom import config
from rankroom.errors import SshError
from rankroom.ssh import command, connection
from rankroom.ssh.connection import SshConnection


def test_the_users_keepalive_interval_is_used_up_to_a_limit():
    def opening(settings: str) -> str:
        return " ".join(command.master("ssh", Path("/s"), "login", 15, settings))

    own = opening("user ada\nserveraliveinterval 5\nserveralivecountmax 4\n")
    assert "ServerAliveInterval=5 -o ServerAliveCountMax=3" in own
    # A longer interval, meant to keep a connection from being closed, is limited.
    assert "ServerAliveInterval=10 " in opening("serveraliveinterval 60\n")
    for settings in ("", "serveraliveinterval 0\n", "setenv X=serveraliveinterval 30\n"):
        assert "ServerAliveInterval=1 -o ServerAliveCountMax=3" in opening(settings)


def test_a_suspended_login_process_does_not_block_other_logins(home, monkeypatch):
    monkeypatch.setattr(config, "ask_seconds", lambda: 0.1)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(connection, "AUTHENTICATION_TIMEOUT_S", 0.1)
    tried = []

    async def connect(self: SshConnection, *about: object) -> None:
        tried.append(self.name)
        raise SshError("no way", "denied")

    monkeypatch.setattr(SshConnection, "_connect", connect)
    there = SshConnection("nowhere.invalid", terminal=False)
    with contextlib.closing(there.socket.with_suffix(".lock").open("w")) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SshError, match="no way"):
            asyncio.run(asyncio.wait_for(there.open(), 20))
    assert tried == ["nowhere.invalid"]
