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

CLUSTER_NAME = "course"  # of the cluster
LESSONS_THAT_TRAIN_HERE = (
    17,
    18,
    20,
)  # lessons that also train where their notebook runs: `!rankroom run`
SUBMIT_COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}  # the submit command, which a login node has
# For a supervisor that was just started to report that it is alive.
SUPERVISOR_START_TIMEOUT_S = 30.0
# For resolving the names of login nodes, which is slow without a network.
NAME_LOOKUP_TIMEOUT_S = 2.0


def ready(lesson: Lesson, ranks: int | None, where: str | None) -> tuple[AnyCluster, bool]:
    """Return the notebook's cluster, or the course's, and whether it was started now.

    The course's cluster is started if it is not running: with `ranks` ranks, or as many as a seat
    of the workshop has, or one per GPU but no fewer than lessons need; on the site `where`, by
    default with those that its job grants. On a machine with too few GPUs for the lessons, ranks
    use the CPU.

    Raises UsageError if the cluster has another number of ranks or is elsewhere, and on the login
    node of a site.
    """
    _find_commands()
    if lesson.number in LESSONS_THAT_TRAIN_HERE and (login := _login_node()):
        raise UsageError(TRAINS_ON_LOGIN_NODE.format(site=login, lesson=lesson.number))
    current = AnyCluster.current
    is_new = False
    if current is None or not current.running:
        try:
            cluster_magic.attach(CLUSTER_NAME)
        except NoClusterError:
            try:
                _start(lesson, ranks, where)
                is_new = True
            except launch.InUseError:  # another notebook is already starting it
                poll_until(
                    lambda: liveness.alive(ClusterPaths(CLUSTER_NAME).read()),
                    SUPERVISOR_START_TIMEOUT_S,
                )
                cluster_magic.attach(CLUSTER_NAME)
    cluster = trial.ranks()
    # Another notebook may have started it: a `%cluster resize` from here must keep it on the CPU.
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
    """Restart the ranks for a lesson that needs ranks that have run nothing yet. Raises UsageError
    while a run is in progress."""
    cluster = trial.ranks()
    cluster.follow()  # see another notebook's run, too, as a restart would end it
    if cluster.busy:
        raise UsageError(BUSY.format(lesson=lesson.name, cluster=cluster.name))
    print(NEEDS_FRESH_RANKS.format(lesson=lesson.name, why=lesson.fresh))
    cluster_magic.restart("")
    return trial.ranks()


def quiz_questions() -> Sequence[Question]:
    """Return the questions of a quiz: in a workshop, those about its lessons."""
    from rankroom.workshop.sharing import seat_lessons

    return quiz.questions_about(seat_lessons())


def refusal(cluster: AnyCluster, why: str) -> Callable[[], str]:
    """Return a function that returns `why` until this notebook has another cluster, or its cluster
    has been started again; then ""."""
    before = cluster.refresh()

    def still() -> str:
        now = AnyCluster.current and AnyCluster.current.refresh()
        is_same = now and (now.created, now.size) == (before.created, before.size)
        return why if is_same else ""

    return still


def _is_on(cluster: AnyCluster, where: str) -> bool:
    """Return whether a cluster is on the site `where`. A cluster of this machine is on any site
    that submits no job, such as `local`."""
    remote = cluster.refresh().remote
    if remote is not None:
        return remote.site == where
    return start_request.job_on(site.load(where), {}) is None


def _start(lesson: Lesson, ranks: int | None, where: str | None) -> None:
    words = [f"--name {CLUSTER_NAME}"]
    if where is not None:
        words.append(f"--site {where}")
    else:
        granted, count, size = launch.room_for(ranks)
        if granted is None and (login := _login_node()):
            raise UsageError(STARTS_ON_LOGIN_NODE.format(site=login, lesson=lesson.number))
        ranks = ranks or _ranks_of_seat()
        if granted is None and not ranks and 0 < count < MIN_RANKS:
            _hide_gpus()
            print(FEW_GPUS)
        # If a job grants enough ranks, it also says on which of its nodes they run.
        if not ranks and (granted is None or size < MIN_RANKS):
            ranks = max(size, MIN_RANKS)
    if ranks is not None:
        words.append(f"--ranks {ranks}")
    cluster_magic.start(" ".join(words))


def _on_cpu(cluster: AnyCluster) -> bool:
    """Return whether a cluster's ranks are on this machine and use the CPU. For ranks elsewhere,
    this machine's GPUs do not matter."""
    info = cluster.refresh()
    is_here = info.remote is None and info.allocation is None
    return is_here and bool(info.ranks) and all(rank.device == "cpu" for rank in info.ranks)


def _hide_gpus() -> None:
    """Hide the GPUs from ranks that this notebook starts or restarts: timings of two ranks on one
    GPU are misleading, and TensorFlow's ranks would not share its memory."""
    os.environ[gpus.VISIBLE] = ""


def _ranks_of_seat() -> int | None:
    from rankroom.workshop.sharing import seat_ranks  # most notebooks do not need it

    return seat_ranks() or None


def _login_node() -> str:
    """Return the site whose login node this machine is; "" if it is none, or inside a job.

    The user's own profiles are always checked. Those that all users share, which come with Rankroom
    or are the computing center's, are only checked if their scheduler's submit command is here:
    elsewhere, resolving the names of their login nodes would be wasted time.
    """
    if any(map(os.environ.get, allocation.VARIABLES.values())):
        return ""
    asked: dict[str, Site] = {}
    for name, profile in site.files().items():
        try:
            one = site.load(name)
        except UsageError:  # perhaps of another site, and not the user's: `--site` shows the error
            continue
        is_own = profile.parent == site.own_folder()
        command = SUBMIT_COMMANDS.get(one.scheduler)
        if command and one.login and (is_own or shutil.which(command)):
            asked[name] = one
    found: list[str] = []

    def ask(name: str) -> None:
        if same_machine.is_here(asked[name]):
            found.append(name)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in asked]
    for each in threads:
        each.start()
    until = time.monotonic() + NAME_LOOKUP_TIMEOUT_S
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    return min(found, default="")


def _find_commands() -> None:
    """Make `!rankroom` and `!python` in a lesson those of this environment, whose bin folder may be
    missing in PATH, or come after that of the server's environment."""
    own = str(Path(sys.executable).parent)
    mine = shutil.which("rankroom", path=own)
    if mine and shutil.which("rankroom") != mine:
        os.environ["PATH"] = os.pathsep.join(filter(None, (own, os.environ.get("PATH"))))


MIN_RANKS = max(each.ranks for each in LESSONS)  # all lessons share the ranks that one starts
BUSY = (
    "lesson {lesson} needs fresh ranks, and {cluster} is busy with a run: wait for it or interrupt "
    "it, then run this cell again"
)
ELSEWHERE = (
    "the notebook's cluster is not on {site} ({cluster}): `%cluster stop` first, or leave out "
    "--site"
)
FEW_GPUS = "this machine has one GPU, and lessons need two ranks: they use the CPU"
NEEDS_FRESH_RANKS = "lesson {lesson} needs fresh ranks, as {why}: restarting them"
TRAINS_ON_LOGIN_NODE = (
    "lesson {lesson} also trains where its notebook runs, and this is the login node of {site}, "
    "which is no place to train on: `rankroom lab --site {site}` starts JupyterLab in a job"
)
STARTS_ON_LOGIN_NODE = (
    "this is the login node of {site}, which is no place to train on: `%course {lesson} --site "
    "{site}` starts ranks in a job"
)
