"""What a lesson needs and the ranks lack, reported at its beginning instead of by a traceback from
deep inside a library later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from shlex import quote
from typing import TYPE_CHECKING

from rankroom.course.lessons import LESSONS, Lesson
from rankroom.horovod_build.features import features

if TYPE_CHECKING:  # ranks import this module for `missing_here`, but not the cluster
    from rankroom.cluster.base import AnyCluster

REPLY_TIMEOUT_S = 60.0  # finding packages for the first time may take long on a slow file system
INSTALL_COMMANDS = {
    "horovod.torch": "`rankroom horovod build` builds it for the frameworks there are",
    "horovod.tensorflow": "`rankroom horovod build` builds it for the frameworks there are",
    "torch": "`pip install torch`",
    "tensorflow": "`pip install tensorflow`",
    "sklearn": "`pip install scikit-learn`",
}


def unmet_needs(cluster: AnyCluster, lesson: Lesson) -> str:
    """Return why this lesson cannot be taken on these ranks, and which can; empty if it can."""
    if cluster.size < lesson.ranks:
        return TOO_FEW_RANKS.format(
            lesson=lesson.name, needs=lesson.ranks, size=cluster.size, number=lesson.number
        )
    names = missing_on_ranks(cluster, lesson.needs)
    if not names:
        return ""
    gone = missing_on_ranks(cluster, sorted({name for each in LESSONS for name in each.needs}))
    works = [str(each.number) for each in LESSONS if not set(each.needs) & set(gone)]
    how = "; ".join(
        dict.fromkeys(INSTALL_COMMANDS.get(name, f"`pip install {quote(name)}`") for name in names)
    )
    return MISSING_PACKAGES.format(
        lesson=lesson.name, names=", ".join(names), how=how, number=lesson.number,
        works=", ".join(works) or "none",
    )  # fmt: skip


def missing_on_ranks(cluster: AnyCluster, names: Sequence[str]) -> list[str]:
    """Return the packages that the ranks lack. Raises RankroomError if rank 0 does not answer, for
    instance because a run is active."""
    found: list[str] = (
        cluster.apply(0, missing_here, list(names), patience=REPLY_TIMEOUT_S) if names else []
    )
    return found


def missing_here(names: Sequence[str]) -> list[str]:
    """Return the packages that cannot be imported in this process, or only in too old a version."""
    return [name for name in names if not _is_there(*name.partition(">=")[::2])]


def _is_there(name: str, least: str) -> bool:
    """Look for a package without importing it: importing torch alone takes seconds."""
    try:
        if find_spec(name) is None:
            return False
    except ImportError:
        return False
    if least:
        with suppress(PackageNotFoundError):  # the distribution's own name may differ
            return _numbers(version(name)) >= _numbers(least)
    package, _, framework = name.partition(".")
    if package != "horovod" or not framework:
        return True
    # Horovod has the Python files of all frameworks, but works only with those it was built for.
    built = features()
    return built is not None and framework in built.frameworks


def _numbers(text: str) -> list[int]:
    """The first two numbers of a version: `[2, 13]` of "2.13.0+cu130"."""
    return [int(each) for each in re.findall(r"\d+", text)[:2]]


TOO_FEW_RANKS = (
    "lesson {lesson} needs {needs} ranks, and you have {size}: `%cluster resize {needs}`, then "
    "`%course {number}` again"
)
MISSING_PACKAGES = (
    "lesson {lesson} needs {names}, which the ranks do not have: {how}, then `%cluster restart` "
    "and `%course {number}` again. Lessons that work already: {works}"
)
