"""The library that closes ports: ranks go without it where it cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankroom import config
from rankroom.supervisor.processes import port_guard


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> Path:
    """The folder in /tmp that is used for a home with a space in its path."""
    folder = tmp_path / "of a user"
    monkeypatch.setattr(config, "without_spaces", lambda wanted: folder)
    return folder


def test_a_folder_that_another_user_made_first_keeps_no_cluster_from_starting(native, monkeypatch):
    native.mkdir()
    ours = config.make_own

    def refuse(folder: Path) -> None:
        if folder == native:
            raise config.NotPrivateError(config.NOT_YOURS.format(folder=folder))
        ours(folder)

    monkeypatch.setattr(config, "make_own", refuse)
    assert port_guard.environment({}) == {}


def test_nor_does_one_that_cannot_be_looked_into(native, monkeypatch):
    exists = Path.exists

    def refuse(self: Path, **how: bool) -> bool:
        if self.parent == native:
            raise PermissionError(13, os.strerror(13), str(self))
        return exists(self, **how)

    monkeypatch.setattr(Path, "exists", refuse)
    assert port_guard.environment({}) == {}


def test_nor_does_a_compiler_whose_command_is_no_command(native, monkeypatch):
    monkeypatch.setenv("CC", "gcc '-O2")
    assert port_guard.environment({}) == {}
