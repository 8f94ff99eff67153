"""`%course` on ranks that are there: which lesson restarts them, and what is refused before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rankroom.cluster.base import AnyCluster
from rankroom.course.lessons import lesson
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic, course_ranks
from rankroom.notebook.course_magics import CourseMagics
from rankroom.notebook.magics import RankroomMagics
from rankroom.record.cluster_file import ClusterInfo, Remote


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
    with pytest.raises(UsageError, match="needs 2 ranks, and there are 1"):
        magics.every.distributed("", "1")
    with pytest.raises(UsageError, match="needs 2 ranks, and there are 1"):
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
