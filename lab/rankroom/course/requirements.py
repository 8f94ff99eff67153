"""What a lesson needs that is not here: said at its beginning, in words, instead of by a traceback
from deep inside some library later."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from rankroom.cluster.base import AnyCluster
from rankroom.course.lessons import LESSONS, Lesson
from rankroom.errors import RankroomError

ASK_S = 60.0  # the first look at packages on a slow file system
# Looked for without importing them: torch alone takes seconds.
_ASK = """
from importlib.util import find_spec
def _there(name):
    try:
        return find_spec(name) is not None
    except ImportError:
        return False
[name for name in {names!r} if not _there(name)]
"""
_INSTALL = {
    "horovod.torch": "`rankroom horovod build` builds it for the frameworks there are",
    "horovod.tensorflow": "`rankroom horovod build` builds it for the frameworks there are",
    "torch": "`pip install torch`",
    "tensorflow": "`pip install tensorflow`",
    "sklearn": "`pip install scikit-learn`",
}


def lacking(cluster: AnyCluster, lesson: Lesson) -> str:
    """Why this lesson cannot be walked on these ranks, and what can; empty if it can."""
    if cluster.size < lesson.ranks:
        return FEW.format(lesson=lesson.name, needs=lesson.ranks, size=cluster.size)
    names = missing(cluster, lesson.needs)
    if not names:
        return ""
    gone = missing(cluster, sorted({name for each in LESSONS for name in each.needs}))
    works = [str(each.number) for each in LESSONS if not set(each.needs) & set(gone)]
    how = "; ".join(dict.fromkeys(_INSTALL.get(name, f"`pip install {name}`") for name in names))
    return LACKS.format(
        lesson=lesson.name, names=", ".join(names), how=how, works=", ".join(works) or "none"
    )


def missing(cluster: AnyCluster, names: Sequence[str]) -> list[str]:
    """Which packages the ranks do not have. Raises RankroomError if they do not say."""
    if not names:
        return []
    run = cluster.run(_ASK.format(names=list(names)), ranks=[0])
    if not run.wait(ASK_S) or run.state != "done" or 0 not in run.results:
        run.interrupt()
        raise RankroomError(f"rank 0 did not say which packages it has: `%runs {run.id}` tells why")
    found: list[str] = ast.literal_eval(run.results[0])
    return found


FEW = (
    "lesson {lesson} needs {needs} ranks, and there are {size}: `%cluster resize {needs}`, then "
    "run this cell again"
)
LACKS = (
    "lesson {lesson} needs {names}, which the ranks do not have: {how}, then `%cluster restart` "
    "and this cell again. Lessons that work as it is: {works}"
)
