"""The ranks that lessons run on: one cluster for the whole course, whichever notebook is open."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankroom.cluster import launch, liveness, start_request
from rankroom.cluster.base import AnyCluster
from rankroom.course import quiz, trial
from rankroom.course.lessons import LESSONS, Lesson
from rankroom.course.quiz_questions import Question
from rankroom.errors import NoClusterError, UsageError
from rankroom.notebook import cluster_magic
from rankroom.record.cluster_file import ClusterPaths
from rankroom.scheduler import allocation, same_machine, site
from rankroom.scheduler.site import Site
from rankroom.system import gpus
from rankroom.system.polling import poll_until
from rankroom.text.rank_ranges import count_ranks

NAME = "course"  # of the cluster
TRAIN_HERE = (17, 18, 20)  # lessons that also train where their notebook runs: `!rankroom run`
SUBMITS = {"slurm": "sbatch", "pbs": "qsub"}  # what the login node of a site has
BEGINS_S = 30.0  # for a supervisor that was just started to say that it keeps its cluster
LOOK_UP_S = 2.0  # for the addresses of login nodes: without a network, names take long


def ready(lesson: Lesson, ranks: int | None, where: str | None) -> tuple[AnyCluster, bool]:
    """The notebook's cluster, or the course's, which is started if it does not run: with `ranks`
    ranks, or those of a seat in a workshop, or as many as there are GPUs, or the job of the site
    `where` grants, but not fewer than lessons need. On a machine with too few GPUs for the lessons,
    they use the CPU. And whether it was started now.

    Raises UsageError where it has another number of ranks or is elsewhere, and on the login node
    of a site.
    """
    _find_commands()
    if lesson.number in TRAIN_HERE and (login := _login_node()):
        raise UsageError(TRAINS.format(site=login, lesson=lesson.number))
    current = AnyCluster.current
    is_new = False
    if current is None or not current.running:
        try:
            cluster_magic.attach(NAME)
        except NoClusterError:
            try:
                _start(lesson, ranks, where)
                is_new = True
            except launch.InUseError:  # another notebook has begun to start it a moment ago
                poll_until(lambda: liveness.alive(ClusterPaths(NAME).read()), BEGINS_S)
                cluster_magic.attach(NAME)
    cluster = trial.ranks()
    # Started from another notebook, perhaps: `%cluster resize` of this one leaves them on the CPU.
    if not is_new and 0 < gpus.visible_gpus() < cluster.size and _on_cpu(cluster):
        _hide_gpus()
    if ranks not in (None, cluster.size):
        raise UsageError(
            f"{cluster.name} has {count_ranks(cluster.size)}: `%cluster resize {ranks}` first"
        )
    if where is not None and not is_new and not _is_on(cluster, where):
        raise UsageError(ELSEWHERE.format(cluster=cluster.describe(), site=where))
    return cluster, is_new


def restarted(lesson: Lesson) -> AnyCluster:
    """The ranks as a lesson needs them that must have run nothing yet. Raises UsageError while a
    run is on."""
    cluster = trial.ranks()
    cluster.follow()  # another notebook's run would be ended, too
    if cluster.busy:
        raise UsageError(BUSY.format(lesson=lesson.name, cluster=cluster.name))
    print(FRESH.format(lesson=lesson.name, why=lesson.fresh))
    cluster_magic.restart("")
    return trial.ranks()


def quiz_questions() -> Sequence[Question]:
    """The questions of a quiz here: in a workshop, those about what its lessons teach."""
    from rankroom.workshop.sharing import seat_lessons

    return quiz.about(seat_lessons())


def refusal(cluster: AnyCluster, why: str) -> Callable[[], str]:
    """`why`, until this notebook has another cluster, or that has been started again."""
    before = cluster.refresh()

    def still() -> str:
        now = AnyCluster.current and AnyCluster.current.refresh()
        is_same = now and (now.created, now.size) == (before.created, before.size)
        return why if is_same else ""

    return still


def _is_on(cluster: AnyCluster, where: str) -> bool:
    """Whether a cluster is on a site; one may stand for this machine."""
    remote = cluster.refresh().remote
    if remote is not None:
        return remote.site == where
    return start_request.job_on(site.load(where), {}) is None


def _start(lesson: Lesson, ranks: int | None, where: str | None) -> None:
    words = [f"--name {NAME}"]
    if where is not None:
        words.append(f"--site {where}")
    else:
        granted, count, size = launch.room_for(ranks)
        if granted is None and (login := _login_node()):
            raise UsageError(LOGIN.format(site=login, lesson=lesson.number))
        ranks = ranks or _ranks_of_seat()
        if granted is None and not ranks and 0 < count < FEWEST:
            _hide_gpus()
            print(FEW_GPUS)
        # Where a job grants enough, it also says on which of its nodes.
        if not ranks and (granted is None or size < FEWEST):
            ranks = max(size, FEWEST)
    if ranks is not None:
        words.append(f"--ranks {ranks}")
    cluster_magic.start(" ".join(words))


def _on_cpu(cluster: AnyCluster) -> bool:
    """Whether ranks of this machine use the CPU: of others, its GPUs tell nothing."""
    info = cluster.refresh()
    is_here = info.remote is None and info.allocation is None
    return is_here and bool(info.ranks) and all(rank.device == "cpu" for rank in info.ranks)


def _hide_gpus() -> None:
    """From the ranks that this notebook starts, and starts again: two on one GPU say nothing true
    of speed, and TensorFlow's would not share its memory."""
    os.environ[gpus.VISIBLE] = ""


def _ranks_of_seat() -> int | None:
    from rankroom.workshop.sharing import seat_ranks  # most notebooks have no need of it

    return seat_ranks() or None


def _login_node() -> str:
    """The site whose login node this is; empty if it is none, or in a job.

    A profile of the user's own is always asked. Those of the folder that all users share, which
    come with Rankroom or are the centre's, only count where there is their scheduler's command:
    elsewhere, their names would be looked up for nothing.
    """
    if any(map(os.environ.get, allocation.VARIABLES.values())):
        return ""
    asked: dict[str, Site] = {}
    for name, profile in site.files().items():
        try:
            one = site.load(name)
        except UsageError:  # of another site, perhaps, and somebody else's: who names it is told
            continue
        is_own = profile.parent == site.own_folder()
        command = SUBMITS.get(one.scheduler)
        if command and one.login and (is_own or shutil.which(command)):
            asked[name] = one
    found: list[str] = []

    def ask(name: str) -> None:
        if same_machine.is_here(asked[name]):
            found.append(name)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in asked]
    for each in threads:
        each.start()
    until = time.monotonic() + LOOK_UP_S
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    return min(found, default="")


def _find_commands() -> None:
    """Have `!rankroom` and `!python` of a lesson be this environment's: its bin may not be on PATH,
    or come after that of the server's environment."""
    own = str(Path(sys.executable).parent)
    mine = shutil.which("rankroom", path=own)
    if mine and shutil.which("rankroom") != mine:
        os.environ["PATH"] = os.pathsep.join(filter(None, (own, os.environ.get("PATH"))))


FEWEST = max(each.ranks for each in LESSONS)  # all share the ranks that the first one starts
BUSY = (
    "lesson {lesson} needs fresh ranks, and {cluster} is busy with a run: wait for it or interrupt "
    "it, then run this cell again"
)
ELSEWHERE = "{cluster}, and not on {site}: `%cluster stop` first, or leave out --site"
FEW_GPUS = "this machine has one GPU, and lessons need two ranks: they use the CPU"
FRESH = "lesson {lesson} needs fresh ranks, as {why}: they are restarted"
TRAINS = (
    "lesson {lesson} also trains where its notebook runs, and this is the login node of {site}, "
    "which is no place to train on: `rankroom lab --site {site}` starts JupyterLab in a job"
)
LOGIN = (
    "this is the login node of {site}, which is no place to train on: `%course {lesson} --site "
    "{site}` starts ranks in a job"
)
