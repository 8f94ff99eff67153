"""Pruning by age and size: live runs stay, and so does all outside the runs folder."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankroom import config
from rankroom.errors import UsageError
from rankroom.record.blank import BLANK_SUFFIX, forsaken
from rankroom.record.model import Owner
from rankroom.record.retention import DAY_S
from rankroom.record.store import Store
from record_makers import finished_record, gone_process, names, start_record


def aged(root: Path, days: float, size: int = 1000, **fields) -> str:
    """A finished record last written `days` ago."""
    then = time.time() - days * DAY_S
    store, run = finished_record(root, b"x" * size + b"\n", start=int(then * 1e6), **fields)
    for path in store.paths(run.id).folder.iterdir():
        os.utime(path, (then, then))
    return run.id


def test_pruning_by_age(tmp_path: Path):
    old, young = aged(tmp_path, 40), aged(tmp_path, 20)
    store = Store(tmp_path)
    assert [p.id for p in store.prune(dry_run=True)] == [old]
    assert set(store.ids()) == {old, young}
    gone = store.prune()
    assert [(p.id, p.why) for p in gone] == [(old, "age")] and gone[0].bytes > 1000
    assert store.ids() == [young]


def test_pruning_by_size_takes_the_oldest(tmp_path: Path):
    ids = [aged(tmp_path, days, 10_000) for days in (5, 4, 3, 2)]
    store = Store(tmp_path)
    assert [p.id for p in store.prune(max_bytes=25_000)] == ids[:2]
    assert store.ids() == ids[:1:-1]
    assert store.prune(max_bytes=25_000) == []


def test_automatic_pruning_removes_nothing_if_the_clock_may_have_jumped(tmp_path: Path):
    old, older = aged(tmp_path, 40), aged(tmp_path, 50)
    store = Store(tmp_path)
    assert store.prune(by_itself=True) == []
    assert [p.id for p in store.prune(max_age=0, by_itself=True, dry_run=True)] == [older, old]
    assert [p.why for p in store.prune(max_bytes=0, by_itself=True, dry_run=True)] == ["size"] * 2
    aged(tmp_path, 1)
    assert [p.id for p in store.prune(by_itself=True)] == [older, old]


def test_what_was_written_just_now_is_not_pruned_for_size(tmp_path: Path):
    fresh = aged(tmp_path, 0)
    store = Store(tmp_path)
    assert store.prune(max_bytes=0) == []
    assert [p.id for p in store.prune(max_bytes=0, grace=0)] == [fresh]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_record_that_cannot_be_removed_is_an_error_unless_nfs_delays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
):
    ids = [aged(tmp_path, days, 10_000) for days in (5, 4, 3)]
    store = Store(tmp_path)
    remove = shutil.rmtree

    def refuse(folder: Path, ignore_errors: bool = False) -> None:
        if folder.name != ids[0]:
            remove(folder, ignore_errors)
            return
        if is_open:  # as on NFS, while another process reads the file
            remove(folder, ignore_errors=True)
            folder.mkdir()
            (folder / ".nfs0001").write_text("")
        if not ignore_errors:
            raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    first, *others = store.prune(max_bytes=25_000)
    assert first.id == ids[0] and (first.error is None) == is_open
    # Its size still counts, unless NFS will soon free the space.
    assert [(p.id, p.error) for p in others] == ([] if is_open else [(ids[1], None)])
    assert set(store.ids()) == ({*ids} if is_open else {ids[0], ids[2]})


def test_automatic_pruning_removes_no_others_for_an_unremovable_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    large = aged(tmp_path, 5, 50_000)
    ids = [aged(tmp_path, days, 10_000) for days in (4, 3, 2)]
    remove = shutil.rmtree

    def refuse(folder: Path, ignore_errors: bool = False) -> None:
        if folder.name != large:
            remove(folder, ignore_errors)
        elif not ignore_errors:
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    store = Store(tmp_path)
    [tried] = store.prune(max_bytes=40_000, by_itself=True)
    assert tried.id == large and tried.error is not None
    assert set(store.ids()) == {large, *ids}


def test_automatic_pruning_does_not_count_the_size_of_a_live_run(tmp_path: Path):
    ids = [aged(tmp_path, days, 10_000) for days in (4, 3, 2)]
    store, live, writer = start_record(tmp_path)
    writer.append(b"x" * 100_000 + b"\n")
    assert store.prune(max_bytes=40_000, by_itself=True) == []
    assert [each.id for each in store.prune(max_bytes=25_000, by_itself=True)] == ids[:1]
    assert set(store.ids()) == {*ids[1:], live.id}
    writer.close()


def test_a_prepared_folder_renamed_during_the_check_is_not_forsaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    blank = tmp_path / f".7-elsewhere-1{BLANK_SUFFIX}"
    blank.mkdir()
    os.utime(blank, (0, 0))
    assert list(forsaken(tmp_path)) == [blank]

    def renamed(self: Path) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "lstat", renamed)
    assert list(forsaken(tmp_path)) == []


def test_a_live_run_is_never_pruned(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    _, remote, other = start_record(tmp_path, owner=Owner("another-host", 1))
    _, lost, third = start_record(tmp_path, owner=gone_process())
    for r in (run, lost):
        for path in store.paths(r.id).folder.iterdir():
            os.utime(path, (1000, 1000))
    quiet = time.time() - 3600
    for path in store.paths(remote.id).folder.iterdir():
        os.utime(path, (quiet, quiet))
    gone = store.prune(max_age=0, max_bytes=0, grace=0)
    assert [p.id for p in gone] == [lost.id]
    assert set(store.ids()) == {run.id, remote.id}
    for w in (writer, other, third):
        w.close()


def test_pruning_stays_inside_the_runs_folder(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep me")
    old = aged(tmp_path / "home", 100)
    store = Store(tmp_path / "home")
    (store.runs / "20200101-000000-000000").symlink_to(outside)
    (store.paths(old).folder / "link").symlink_to(outside)
    (store.runs / "stray.txt").write_text("not ours")
    assert [p.id for p in store.prune(max_age=0, max_bytes=0, grace=0)] == [old]
    assert (outside / "precious").read_text() == "keep me"
    assert names(store.runs) == ["20200101-000000-000000", "stray.txt"]


def test_damaged_records_and_unused_prepared_folders_are_pruned(tmp_path: Path):
    old = aged(tmp_path, 100)
    store = Store(tmp_path)
    paths = store.paths(old)
    paths.run.write_text("{")
    for path in paths.folder.iterdir():
        os.utime(path, (1000, 1000))
    store.prepare()
    [mine] = names(store.runs)[:1]
    left = mine.replace(str(os.getpid()), str(gone_process().pid))
    (store.runs / left).mkdir()
    assert [p.id for p in store.prune()] == [old]
    assert names(store.runs) == [mine]
    store.forget()
    assert names(store.runs) == []


def test_pruning_a_missing_home_removes_nothing(tmp_path: Path):
    assert Store(tmp_path / "nothing").prune() == []


def test_limits_come_from_the_environment_then_the_file(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RANKROOM_KEEP_DAYS", raising=False)
    monkeypatch.delenv("RANKROOM_KEEP_GB", raising=False)
    assert (config.keep_days(), config.keep_bytes()) == (30, 5_000_000_000)
    file = tmp_path / "rankroom" / "config.toml"
    file.parent.mkdir()
    file.write_text("keep_days = 7\nkeep_gb = 0.5\n")
    assert (config.keep_days(), config.keep_bytes()) == (7, 500_000_000)
    monkeypatch.setenv("RANKROOM_KEEP_DAYS", "3")
    assert config.keep_days() == 3
    for wrong in ("soon", "-1", "inf", "nan", ""):
        monkeypatch.setenv("RANKROOM_KEEP_DAYS", wrong)
        with pytest.raises(UsageError, match="RANKROOM_KEEP_DAYS is"):
            config.keep_days()
    file.write_text("keep_gb = [1]\n")
    with pytest.raises(UsageError, match="keep_gb in"):
        config.keep_bytes()
    file.write_text("keep_gb = = 1\n")
    with pytest.raises(UsageError, match=r"cannot read .*config\.toml"):
        config.keep_bytes()


@pytest.mark.parametrize("broken", ["iterdir", "lstat"])
def test_a_record_that_cannot_be_listed_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    old = aged(tmp_path, 40)

    def refuse(self: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Path, broken, refuse)
        assert Store(tmp_path).prune(max_bytes=0, grace=0) == []
    assert Store(tmp_path).ids() == [old]


def test_a_record_that_cannot_be_read_may_be_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    aged(tmp_path, 40)

    def refuse(self: Path) -> bytes:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert Store(tmp_path).prune() == []
