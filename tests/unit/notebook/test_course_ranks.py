"""`%course` on ranks that are there: which lesson restarts them, and what is refused before."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rankroom.cluster.base import AnyCluster
from rankroom.course.lessons import lesson
from rankroom.errors import NoClusterError, UsageError
from rankroom.notebook import cluster_magic, course_ranks
from rankroom.notebook.course_magics import CourseMagics
from rankroom.notebook.magics import RankroomMagics
from rankroom.record.cluster_file import Allocation, ClusterInfo, Node, Remote
from rankroom.system import gpus


class Ranks:
    """The course's cluster, as far as a lesson asks for it."""

    def __init__(self, size: int = 2, remote: Remote | None = None) -> None:
        self.info = ClusterInfo("course", size, created=1.0, remote=remote)
        self.running, self.busy, self.lacks = True, False, list[str]()

    name = property(lambda self: self.info.name)
    size = property(lambda self: self.info.size)

    def refresh(self) -> ClusterInfo:
        return self.info

    def describe(self) -> str:
        return f"course: {self.size} ranks on here (CPU)"

    def apply(self, rank: int, function: Any, names: list[str], patience: float) -> list[str]:
        return [name for name in names if name in self.lacks]


@pytest.fixture
def ranks(home: object, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    found = Ranks()
    monkeypatch.setattr(AnyCluster, "current", found)
    return found


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of `%cluster restart`."""
    asked: list[str] = []
    monkeypatch.setattr(cluster_magic, "restart", asked.append)
    return asked


@pytest.fixture
def magics() -> CourseMagics:
    shell = InteractiveShell()
    return CourseMagics(shell, RankroomMagics(shell))


FRESH = (4, 9, 11)


@pytest.mark.parametrize("number", FRESH)
def test_a_lesson_that_needs_fresh_ranks_restarts_them_unless_one_catches_up(
    magics: CourseMagics,
    ranks: Ranks,
    restarts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
):
    monkeypatch.setattr("rankroom.notebook.course_magics.catch_up", lambda cluster, solved: [])
    magics.course(f"{number} --catch-up")
    assert restarts == []
    magics.course(f"{number}")
    assert restarts == [""]


@pytest.mark.parametrize("number", FRESH)
def test_ranks_are_not_restarted_for_a_lesson_that_cannot_be_walked(
    magics: CourseMagics, ranks: Ranks, restarts: list[str], number: int
):
    ranks.lacks = ["sklearn"]
    with pytest.raises(UsageError, match=f"needs sklearn.*`%course {number}` again"):
        magics.course(f"{number}")
    ranks.lacks, ranks.busy = [], True
    with pytest.raises(UsageError, match="course is busy with a run: wait for it or interrupt it"):
        magics.course(f"{number}")
    assert restarts == []


def test_a_refusal_is_over_with_the_ranks_it_was_about(
    magics: CourseMagics, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
):
    ranks.info.size = 1
    with pytest.raises(UsageError, match="`%cluster resize 2`, then `%course 2` again"):
        magics.course("2")
    with pytest.raises(UsageError, match="needs 2 ranks, and you have 1"):
        magics.every.distributed("", "1")
    with pytest.raises(UsageError, match="needs 2 ranks, and you have 1"):
        magics.check_cell("ring.1", "1")
    ranks.info = ClusterInfo("course", 2, created=1.0)  # resized, by whichever notebook
    assert magics.every.refuses() == ""
    ranks.info = ClusterInfo("course", 1, created=1.0)
    assert magics.every.refuses()
    ranks.info = ClusterInfo("course", 1, created=2.0)  # started again
    assert magics.every.refuses() == ""
    monkeypatch.setattr(AnyCluster, "current", None)
    assert magics.every.refuses() == ""


@pytest.mark.parametrize(
    ("remote", "site", "is_there"),
    [
        (None, "far", False),
        (Remote("far"), "far", True),
        (Remote("far"), "other", False),
        (None, "near", True),  # a profile that stands for this machine
    ],
)
def test_ranks_that_are_not_on_the_site_asked_for_are_refused(
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    remote: Remote | None,
    site: str,
    is_there: bool,
):
    profiles = {
        "far": SimpleNamespace(scheduler="slurm", login="far.example.org"),
        "near": SimpleNamespace(scheduler="none", login=""),
    }
    monkeypatch.setattr("rankroom.scheduler.site.load", profiles.__getitem__)
    ranks.info.remote = remote
    if is_there:
        assert course_ranks.ready(lesson(12), None, site) == (ranks, False)
    else:
        with pytest.raises(UsageError, match=f"and not on {site}: `%cluster stop` first"):
            course_ranks.ready(lesson(12), None, site)


@pytest.mark.parametrize(
    ("count", "line", "words"),
    [
        (1, "3", "--ranks 2"),
        (1, "0", "--ranks 2"),  # whose ranks the lessons after it use
        (0, "3", "--ranks 2"),
        (2, "3", "--ranks 2"),
        (4, "3", "--ranks 4"),
        (1, "3 --ranks 2", "--ranks 2"),  # as it was asked for
    ],
)
def test_ranks_use_the_cpu_where_they_would_share_a_gpu(
    magics: CourseMagics,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    home: Path,
    count: int,
    line: str,
    words: str,
):
    started: list[tuple[str, str | None]] = []
    found = Ranks()

    def start(asked: str) -> None:
        started.append((asked, os.environ.get(gpus.VISIBLE)))
        found.info.size = int(asked.split()[-1])
        AnyCluster.current = found

    def attach(name: str) -> None:
        raise NoClusterError("none")

    monkeypatch.setenv(gpus.VISIBLE, "0")  # and what the magic sets is put back, too
    monkeypatch.delenv(gpus.VISIBLE)
    monkeypatch.setattr(AnyCluster, "current", None)
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: count)
    monkeypatch.setattr(cluster_magic, "attach", attach)
    monkeypatch.setattr(cluster_magic, "start", start)
    magics.course(line)
    is_hidden = count == 1 and "--ranks" not in line
    assert started == [(f"--name course {words}", "" if is_hidden else None)]
    assert ("they use the CPU" in capsys.readouterr().out) == is_hidden


def test_ranks_that_another_notebook_has_put_on_the_cpu_stay_there(
    magics: CourseMagics, ranks: Ranks, restarts: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(gpus.VISIBLE, "0")
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 1)
    ranks.info.ranks = [SimpleNamespace(device="cuda:0"), SimpleNamespace(device="cuda:0")]
    magics.course("4")
    assert os.environ[gpus.VISIBLE] == "0"
    ranks.info.ranks = [SimpleNamespace(device="cpu"), SimpleNamespace(device="cpu")]
    magics.course("4")
    assert os.environ[gpus.VISIBLE] == ""


@pytest.mark.parametrize(
    "elsewhere", [{"remote": Remote("far")}, {"allocation": Allocation("7", (Node("c1", 2),))}]
)
def test_ranks_on_the_cpu_of_a_site_hide_no_gpu_of_this_machine(
    magics: CourseMagics, ranks: Ranks, restarts: list[str], monkeypatch: pytest.MonkeyPatch,
    elsewhere: dict[str, Any],
):  # fmt: skip
    monkeypatch.setenv(gpus.VISIBLE, "0")
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 1)
    ranks.info = ClusterInfo("course", 2, created=1.0, **elsewhere)
    ranks.info.ranks = [SimpleNamespace(device="cpu"), SimpleNamespace(device="cpu")]
    magics.course("4")
    assert restarts == [""] and os.environ[gpus.VISIBLE] == "0"


def test_the_commands_of_a_lesson_are_those_of_its_own_environment(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """JupyterLab may be of another environment than the kernel, and its bin comes first."""
    for name in ("server", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rankroom").write_text("#!/bin/sh\n")
        (tmp_path / name / "rankroom").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}/server:/usr/bin")
    for _ in range(2):
        course_ranks.ready(lesson(1), None, None)
    assert shutil.which("rankroom") == f"{tmp_path}/own/rankroom"
    assert os.environ["PATH"] == f"{tmp_path}/own:{tmp_path}/server:/usr/bin"
