"""A relative RANKROOM_HOME names the same folder for this process and all that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom import config
from rankroom.cluster import launch
from rankroom.errors import UsageError
from rankroom.record.store import Store


def test_a_relative_home_is_not_moved_by_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKROOM_HOME", "rr")
    assert config.home() == tmp_path / "rr"
    monkeypatch.chdir("/")
    assert config.home() == Store().root == tmp_path / "rr"
    assert launch.own_environment()["RANKROOM_HOME"] == str(tmp_path / "rr")


def test_a_deleted_current_directory_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="has been deleted: `cd`"):
        launch.working_folder(None)
    monkeypatch.setenv("RANKROOM_HOME", "rr")
    with pytest.raises(UsageError, match="has been deleted: `cd`"):
        config.home()
