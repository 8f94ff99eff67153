"""Runs left in the spools of an ended cluster; a spool that cannot be listed may hold some."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankroom.cluster import cleanup
from rankroom.record.cluster_file import UNLISTED, ClusterInfo, ClusterPaths
from rankroom.record.store import Store


@pytest.fixture
def ended(home: Path) -> ClusterPaths:
    """A cluster that has ended, with two ranks' spools."""
    paths = ClusterPaths("a")
    paths.make(2)
    paths.write(ClusterInfo("a", 2, "failed"))
    return paths


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    iterdir = Path.iterdir

    def listed(self: Path) -> Iterator[Path]:
        if self == folder:
            raise OSError(errno.ESTALE, "Stale file handle", str(self))
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", listed)


def test_runs_are_found_in_all_spools(ended):
    assert ended.unfinished() == []
    for rank, name in ((0, "b.jsonl"), (1, "a.jsonl"), (1, "b.jsonl"), (1, "stdout")):
        (ended.spool(rank) / name).touch()
    assert ended.unfinished() == ["a", "b"]
    (ended.folder / "spool" / "notes.txt").touch()
    assert ended.unfinished() == ["a", "b"]
    assert ClusterPaths("other").unfinished() == []


@pytest.mark.parametrize("spool", ["spool", "spool/1"])
def test_a_spool_that_cannot_be_listed_may_hold_unfinished_runs(ended, monkeypatch, spool: str):
    refuse(monkeypatch, ended.folder / spool)
    assert ended.unfinished() == [UNLISTED]
    [found] = cleanup.findings(Store())
    assert UNLISTED in found.what and found.what.endswith("so its folder is kept")
