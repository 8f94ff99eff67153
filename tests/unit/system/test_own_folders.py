"""Folders that another user created first, or that others may write to, are not used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankroom import config
from rankroom.errors import NotPrivateError
from rankroom.record.cluster_file import ClusterPaths, all_clusters
from rankroom.record.store import Store


def theirs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a folder that appears to be another user's."""
    folder.mkdir(parents=True)
    ours = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: ours + 1)


def of_the_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o770)


Plant = Callable[[Path, pytest.MonkeyPatch], None]
ALL = pytest.mark.parametrize("plant", [theirs, of_the_group])


def test_new_folders_are_private_to_the_user(home: Path):
    config.make_private(home / "labs")
    assert [each.stat().st_mode & 0o777 for each in (home, home / "labs")] == [0o700] * 2
    config.make_private(home / "labs")  # they may exist already


@ALL
@pytest.mark.parametrize("name", ["", "labs"])
def test_a_folder_that_is_not_private_is_refused(home: Path, monkeypatch, plant: Plant, name: str):
    plant(home / name, monkeypatch)
    with pytest.raises(NotPrivateError, match=str(home)) as refused:
        config.make_private(home / "labs")
    assert "\n" not in str(refused.value)


@ALL
def test_a_home_that_others_own_or_may_write_to_is_not_read(home: Path, monkeypatch, plant: Plant):
    """The file of a cluster says where keys are sent, and HTML in a record is displayed."""
    plant(home, monkeypatch)
    for look in (all_clusters, Store, lambda: ClusterPaths("x").read()):
        with pytest.raises(NotPrivateError):
            look()


def test_a_file_in_place_of_the_home_raises_an_oserror(home: Path):
    """As on a full disk, this is an OSError: some callers can do without the folder."""
    home.touch()
    with pytest.raises(NotADirectoryError):
        config.make_private(home / "labs")
    assert config.home() == home


def test_a_symlink_is_judged_by_its_owner_and_its_target(home: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "scratch").mkdir(mode=0o700)
    home.symlink_to(tmp_path / "scratch")
    config.make_private(home / "labs")
    assert (tmp_path / "scratch" / "labs").is_dir()
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(NotPrivateError):
        config.make_own(home)
    (tmp_path / "scratch").chmod(0o700)
    ours = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: ours + 1)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        config.make_own(home)
