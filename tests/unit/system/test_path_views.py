"""Which processes see this cluster's folder at its path, as far as that can be determined."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rankroom.cluster import launch
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.owner import this_process
from rankroom.system import path_views, pid_space


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root folder of process 7, which does not see the same files as this process."""
    proc, root = tmp_path / "proc", tmp_path / "root"
    root.mkdir()
    (proc / "self/ns").mkdir(parents=True)
    (proc / "7/ns").mkdir(parents=True)
    (proc / "self/root").symlink_to("/")
    (proc / "7/root").symlink_to(root)
    (proc / "self/ns/mnt").symlink_to("mnt:[1]")
    (proc / "7/ns/mnt").symlink_to("mnt:[2]")
    monkeypatch.setattr(path_views, "PROC", proc)
    return root


def test_a_process_that_sees_another_folder_at_the_path_is_not_ours(others: Path, tmp_path: Path):
    ours = tmp_path / "cluster"
    ours.mkdir()
    (others / str(ours).lstrip("/")).mkdir(parents=True)
    assert not path_views.is_same(7, ours)


def test_a_process_that_sees_nothing_at_our_path_counts_as_ours(others: Path, tmp_path: Path):
    """A process that a cell started in a container without the home, for example."""
    ours = tmp_path / "cluster"
    assert not path_views.is_same(7, ours), "it is not there for us, either"
    ours.mkdir()
    assert path_views.is_same(7, ours)


def test_a_process_that_cannot_be_inspected_gets_the_callers_default(others: Path, tmp_path: Path):
    assert not path_views.is_same(8, tmp_path)
    assert path_views.is_same(8, tmp_path, untold=True)


def test_an_uninspectable_supervisor_is_recognized_by_its_cluster_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    paths, me = ClusterPaths("mine"), this_process()
    paths.make(1)
    command = ["python", "-m", launch.SUPERVISOR, str(paths.folder)]
    shown = [SimpleNamespace(pid=pid, info={"cmdline": command}) for pid in (me.pid, 7)]
    monkeypatch.setattr(psutil, "process_iter", lambda fields: shown)
    monkeypatch.setattr(path_views, "is_same", lambda pid, path, untold=False: untold)
    assert launch.supervisors(paths) == []
    assert launch.supervisors(paths, doubtful=True) == shown
    about = {"supervisor": me.pid, "began": me.began, "host": me.host}
    paths.write(ClusterInfo("mine", 1, space=str(pid_space.here()), **about))
    assert launch.supervisors(paths) == shown[:1]
    paths.write(ClusterInfo("mine", 1, space=str(pid_space.here()), **about | {"began": 1}))
    assert launch.supervisors(paths) == []
