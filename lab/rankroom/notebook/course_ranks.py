"""The ranks that lessons run on: one cluster for the whole course, whichever notebook is open."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rankroom.cluster import launch
from rankroom.cluster.base import AnyCluster
from rankroom.course import trial
from rankroom.course.lessons import LESSONS, Lesson
from rankroom.errors import NoClusterError, UsageError
from rankroom.notebook import cluster_magic
from rankroom.scheduler import same_machine, site
from rankroom.system import gpus
from rankroom.text.rank_ranges import count_ranks

NAME = "course"  # of the cluster


def ready(lesson: Lesson, ranks: int | None, where: str | None) -> tuple[AnyCluster, bool]:
    """The notebook's cluster, or the course's, which is started if it does not run: with `ranks`
    ranks, or as many as there are GPUs, or the job of the site `where` grants. On a machine with
    too few GPUs for the lessons, they use the CPU. And whether it was started now.

    Raises UsageError where it has another number of ranks or is elsewhere, and on the login node
    of a site.
    """
    _find_commands()
    current = AnyCluster.current
    is_new = False
    if current is None or not current.running:
        try:
            cluster_magic.attach(NAME)
        except NoClusterError:
            _start(lesson, ranks, where)
            is_new = True
    cluster = trial.ranks()
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
    if cluster.busy:
        raise UsageError(BUSY.format(lesson=lesson.name, cluster=cluster.name))
    print(FRESH.format(lesson=lesson.name, why=lesson.fresh))
    if 0 < gpus.visible_gpus() < cluster.size and _on_cpu(cluster):
        _hide_gpus()  # started from another notebook, perhaps
    cluster_magic.restart("")
    return trial.ranks()


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
    one = site.load(where)
    return one.scheduler == "none" and not one.login


def _start(lesson: Lesson, ranks: int | None, where: str | None) -> None:
    words = [f"--name {NAME}"]
    if where is not None:
        words.append(f"--site {where}")
    else:
        granted, count, size = launch.room_for(ranks)
        if granted is None:
            from rankroom.workshop.sharing import seat_ranks  # most notebooks have no need of it

            if login := _login_node():
                raise UsageError(LOGIN.format(site=login, lesson=lesson.number))
            ranks = ranks or seat_ranks()
            if not ranks and 0 < count < FEWEST:
                _hide_gpus()
                print(FEW_GPUS)
            ranks = ranks or max(size, FEWEST)
    if ranks is not None:
        words.append(f"--ranks {ranks}")
    cluster_magic.start(" ".join(words))


def _on_cpu(cluster: AnyCluster) -> bool:
    """Whether ranks of this machine use the CPU: of others, its GPUs tell nothing."""
    info = cluster.refresh()
    is_here = info.remote is None and info.allocation is None
    return is_here and all(rank.device == "cpu" for rank in info.ranks)


def _hide_gpus() -> None:
    """From the ranks that this notebook starts, and starts again: two on one GPU say nothing true
    of speed, and TensorFlow's would not share its memory."""
    os.environ[gpus.VISIBLE] = ""


def _login_node() -> str:
    """The user's site whose login node this is; empty if it is none."""
    for name, profile in site.files().items():
        if profile.parent == site.own_folder():
            one = site.load(name)
            if one.scheduler != "none" and one.login and same_machine.is_here(one):
                return name
    return ""


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
LOGIN = (
    "this is the login node of {site}, which is no place to train on: `%course {lesson} --site "
    "{site}` starts ranks in a job"
)
