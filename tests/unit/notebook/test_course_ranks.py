"""The ranks of `%course`: which are started, which lessons restart them, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rankroom.cluster import launch, liveness
from rankroom.cluster.base import AnyCluster
from rankroom.course import lessons
from rankroom.course.lessons import lesson
from rankroom.course.quiz_questions import QUESTIONS
from rankroom.errors import NoClusterError, UsageError
from rankroom.notebook import cluster_magic, course_ranks
from rankroom.notebook.course_magics import CourseMagics
from rankroom.notebook.magics import RankroomMagics
from rankroom.record.cluster_file import Allocation, ClusterInfo, Node, Remote
from rankroom.scheduler import allocation, same_machine, site
from rankroom.system import gpus, network
from rankroom.workshop import sharing


class Ranks:
    """A fake of the course's cluster, with what a lesson needs of it."""

    def __init__(self, size: int = 2, remote: Remote | None = None) -> None:
        self.info = ClusterInfo("course", size, created=1.0, remote=remote)
        self.running, self.busy, self.lacks = True, False, list[str]()
        self.is_anothers = False  # whether another notebook's run is in progress

    name = property(lambda self: self.info.name)
    size = property(lambda self: self.info.size)

    def refresh(self) -> ClusterInfo:
        return self.info

    def follow(self) -> None:
        self.busy |= self.is_anothers

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
    """The arguments of each call of `%cluster restart`."""
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
def test_ranks_are_not_restarted_for_a_lesson_that_cannot_start(
    magics: CourseMagics, ranks: Ranks, restarts: list[str], number: int
):
    ranks.lacks = ["sklearn"]
    with pytest.raises(UsageError, match=f"needs sklearn.*`%course {number}` again"):
        magics.course(f"{number}")
    ranks.lacks, ranks.is_anothers = [], True
    with pytest.raises(UsageError, match="course is busy with a run: wait for it or interrupt it"):
        magics.course(f"{number}")
    assert restarts == []


def test_a_refused_lesson_is_allowed_once_its_ranks_have_changed(
    magics: CourseMagics, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
):
    ranks.info.size = 1
    with pytest.raises(UsageError, match="`%cluster resize 2`, then `%course 2` again"):
        magics.course("2")
    with pytest.raises(UsageError, match="needs 2 ranks, and you have 1"):
        magics.every.distributed("", "1")
    with pytest.raises(UsageError, match="needs 2 ranks, and you have 1"):
        magics.check_cell("ring.1", "1")
    ranks.info = ClusterInfo("course", 2, created=1.0)  # resized, by this notebook or another
    assert magics.every.lesson_refusal() == ""
    ranks.info = ClusterInfo("course", 1, created=1.0)
    assert magics.every.lesson_refusal()
    ranks.info = ClusterInfo("course", 1, created=2.0)  # started again
    assert magics.every.lesson_refusal() == ""
    monkeypatch.setattr(AnyCluster, "current", None)
    assert magics.every.lesson_refusal() == ""


@pytest.mark.parametrize(
    ("remote", "asked", "is_there"),
    [
        (None, "far", False),
        (Remote("far"), "far", True),
        (Remote("far"), "other", False),
        (None, "near", True),  # a profile of this machine
    ],
)
def test_ranks_that_are_not_on_the_site_asked_for_are_refused(
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    remote: Remote | None,
    asked: str,
    is_there: bool,
):
    profiles = {
        "far": site.Site("far", scheduler="slurm", login="far.example.org"),
        "near": site.Site("near", scheduler="none"),
    }
    monkeypatch.setattr(site, "load", profiles.__getitem__)
    ranks.info.remote = remote
    if is_there:
        assert course_ranks.ready(lesson(12), None, asked) == (ranks, False)
    else:
        with pytest.raises(UsageError, match=rf"is not on {asked} \(.*\): `%cluster stop` first"):
            course_ranks.ready(lesson(12), None, asked)


def test_a_site_behind_ssh_without_a_scheduler_is_refused(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
):
    """The message is the same as for a start of ranks there."""
    monkeypatch.setattr(
        site, "load", lambda name: site.Site(name, scheduler="none", login="far.example.org")
    )
    with pytest.raises(UsageError, match="name the scheduler that is there"):
        course_ranks.ready(lesson(12), None, "far")


@pytest.fixture
def started(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """With no cluster yet: the arguments of each `%cluster start`, and the visible GPUs then."""
    asked: list[tuple[str, str | None]] = []
    found = Ranks()

    def start(words: str) -> None:
        asked.append((words, os.environ.get(gpus.VISIBLE)))
        found.info.size = int(words.split()[-1]) if "--ranks" in words else 8
        AnyCluster.current = found

    def attach(name: str) -> None:
        raise NoClusterError("none")

    monkeypatch.setenv(gpus.VISIBLE, "0")  # so that monkeypatch also undoes what the magic sets
    monkeypatch.delenv(gpus.VISIBLE)
    monkeypatch.setattr(AnyCluster, "current", None)
    monkeypatch.setattr(cluster_magic, "attach", attach)
    monkeypatch.setattr(cluster_magic, "start", start)
    return asked


@pytest.mark.parametrize(
    ("count", "line", "words"),
    [
        (1, "3", "--ranks 2"),
        (1, "0", "--ranks 2"),  # later lessons use the same ranks
        (0, "3", "--ranks 2"),
        (2, "3", "--ranks 2"),
        (4, "3", "--ranks 4"),
        (1, "3 --ranks 2", "--ranks 2"),  # an explicit number does not hide the GPU
    ],
)
def test_ranks_use_the_cpu_where_they_would_share_a_gpu(
    magics: CourseMagics,
    started: list[tuple[str, str | None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    line: str,
    words: str,
):
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: count)
    magics.course(line)
    is_hidden = count == 1 and "--ranks" not in line
    assert started == [(f"--name course {words}", "" if is_hidden else None)]
    assert ("they use the CPU" in capsys.readouterr().out) == is_hidden


# A job's nodes and GPUs, a seat's ranks (0: no seat), the arguments of `%course`, and of the start.
@pytest.mark.parametrize(
    ("nodes", "seat", "line", "words"),
    [
        ([("c1", 1)], 0, "3", " --ranks 2"),  # salloc --gpus=1
        ([("c1", 0)], 0, "3", " --ranks 2"),  # one task on the CPU
        ([("c1", 1)], 2, "3", " --ranks 2"),  # a plan with ranks = 2, gpus = 1
        ([("c1", 4)], 3, "3", " --ranks 3"),
        ([("c1", 4)], 0, "3", ""),
        ([("c1", 4), ("c2", 2)], 0, "3", ""),  # six as granted, not three on each node
        ([("c1", 1)], 2, "3 --ranks 4", " --ranks 4"),
    ],
)
def test_a_job_has_the_ranks_of_a_seat_and_never_fewer_than_lessons_need(
    magics: CourseMagics, started: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch,
    nodes: list[tuple[str, int]], seat: int, line: str, words: str,
):  # fmt: skip
    found = [Node(name, 0, devices, 8) for name, devices in nodes]

    def granted(ranks: int | None, *about: object) -> Allocation:
        return Allocation("7", allocation._with_ranks(found, ranks, []))

    monkeypatch.setattr(allocation, "granted", granted)
    monkeypatch.setattr(sharing, "seat_ranks", lambda: seat)
    magics.course(line)
    assert started == [(f"--name course{words}", None)]


def test_a_seat_that_was_given_one_gpu_uses_it(
    magics: CourseMagics, started: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(gpus.VISIBLE, "3")  # set for a seat's server by a workshop on one node
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 8)
    monkeypatch.setattr(sharing, "seat_ranks", lambda: 2)
    magics.course("3")
    assert started == [("--name course --ranks 2", "3")]


def test_a_quiz_in_a_workshop_is_about_its_lessons(monkeypatch: pytest.MonkeyPatch):
    assert course_ranks.quiz_questions() == QUESTIONS
    monkeypatch.setattr(sharing, "seat_lessons", lambda: [1, 4, 12])
    assert [each.lesson for each in course_ranks.quiz_questions()] == [1, 4, 4, 12]


# -- the login node of a site


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a site's profile, in the folder that all users share or in the user's own."""
    folders = {"shared": tmp_path / "shared", "own": tmp_path / "own"}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(site, "shipped_folder", lambda: folders["shared"])
    monkeypatch.setattr(site, "own_folder", lambda: folders["own"])
    monkeypatch.setattr(network, "all_addresses", lambda: {"127.0.0.1"})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for variable in allocation.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)

    def write(name: str, where: str, login: str = "localhost", scheduler: str = "slurm") -> None:
        text = f'login = "{login}"\nscheduler = "{scheduler}"\n'
        (folders[where] / f"{name}.toml").write_text(text)

    return write


def install(tmp_path: Path, command: str) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / command).write_text("#!/bin/sh\n")
    (tmp_path / "bin" / command).chmod(0o755)


def test_a_login_node_is_recognized_by_a_shared_or_own_profile(
    magics: CourseMagics, started: list[tuple[str, str | None]], profiles: Callable[..., None],
    tmp_path: Path,
):  # fmt: skip
    profiles("ours", "shared")
    profiles("theirs", "shared", "localhost", "pbs")
    assert course_ranks._login_node() == ""  # no submit command here
    install(tmp_path, "sbatch")
    with pytest.raises(UsageError, match=r"login node of ours.*`%course 3 --site ours` starts"):
        magics.course("3")
    assert started == []
    profiles("alone", "own", "localhost", "pbs")  # own profiles count without the command
    assert course_ranks._login_node() == "alone"


def test_a_faulty_profile_of_another_site_does_not_block_lessons(
    profiles: Callable[..., None], tmp_path: Path
):
    install(tmp_path, "sbatch")
    profiles("another", "shared", scheduler='slurm"\nnodez = "3')
    assert course_ranks._login_node() == ""
    profiles("ours", "shared")
    assert course_ranks._login_node() == "ours"


def test_a_slow_name_lookup_does_not_count_as_a_login_node(
    profiles: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(tmp_path, "sbatch")
    for number in range(20):
        profiles(f"far{number}", "shared")
    monkeypatch.setattr(same_machine, "is_here", lambda one: time.sleep(30))
    monkeypatch.setattr(course_ranks, "NAME_LOOKUP_TIMEOUT_S", 0.1)
    begun = time.monotonic()
    assert course_ranks._login_node() == ""
    assert time.monotonic() - begun < 20


def test_inside_a_job_a_login_node_does_not_count_as_one(
    profiles: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    profiles("here", "own")
    assert course_ranks._login_node() == "here"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert course_ranks._login_node() == ""


def test_lessons_that_train_in_the_notebook_are_refused_on_a_login_node(
    magics: CourseMagics, ranks: Ranks, started: list[tuple[str, str | None]],
    profiles: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Neither with `--site` nor on ranks that are already running."""
    profiles("here", "own")
    for current in (None, ranks):
        monkeypatch.setattr(AnyCluster, "current", current)
        for words in ("17", "18 --site here", "20"):
            with pytest.raises(UsageError, match="`rankroom lab --site here` starts JupyterLab"):
                magics.course(words)
    assert started == []


def test_the_list_of_lessons_that_train_in_the_notebook_is_correct():
    trains = re.compile(r"^ *!.*\b(horovodrun -np|torchrun|mpirun|rankroom run)\b", re.M)
    found = []
    for each in lessons.LESSONS:
        cells = json.loads((lessons.folder() / each.file).read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        found += [each.number] if any(map(trains.search, code)) else []
    assert tuple(found) == course_ranks.LESSONS_THAT_TRAIN_HERE


def test_ranks_that_another_notebook_has_put_on_the_cpu_stay_there(
    magics: CourseMagics, ranks: Ranks, restarts: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(gpus.VISIBLE, "0")
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 1)
    ranks.info.ranks = [SimpleNamespace(device="cuda:0"), SimpleNamespace(device="cuda:0")]
    magics.course("3")
    assert os.environ[gpus.VISIBLE] == "0"
    ranks.info.ranks = [SimpleNamespace(device="cpu"), SimpleNamespace(device="cpu")]
    # Set before the refusal, too, as `%cluster resize` then starts ranks from this notebook.
    with pytest.raises(UsageError, match="`%cluster resize 4` first"):
        magics.course("3 --ranks 4")
    assert os.environ[gpus.VISIBLE] == ""
    assert restarts == []


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


def test_lesson_commands_come_from_the_environment_of_the_kernel(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """JupyterLab may be in another environment than the kernel, with its bin first in PATH."""
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


def test_a_cluster_that_another_notebook_is_starting_is_attached_to(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
):
    tried: list[str] = []

    def attach(name: str) -> None:
        tried.append(name)
        if len(tried) == 1:
            raise NoClusterError("none yet")
        monkeypatch.setattr(AnyCluster, "current", ranks)

    def start(*about: object) -> None:
        raise launch.InUseError("it is being started")

    monkeypatch.setattr(AnyCluster, "current", None)
    monkeypatch.setattr(cluster_magic, "attach", attach)
    monkeypatch.setattr(course_ranks, "_start", start)
    monkeypatch.setattr(liveness, "alive", lambda info: True)
    assert course_ranks.ready(lesson(1), None, None) == (ranks, False)
    assert tried == ["course", "course"]
