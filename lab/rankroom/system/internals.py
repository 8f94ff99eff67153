"""Whether other packages still have the names that they keep to themselves, and we need."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Any

from rankroom.errors import RankroomError


def demand(package: str, owner: Any, names: Iterable[str]) -> None:
    """Raise RankroomError if `owner`, which is of `package`, lacks one of `names`."""
    if lacks := [name for name in names if not hasattr(owner, name)]:
        whose = getattr(owner, "__name__", type(owner).__name__)
        missing = ", ".join(f"{whose}.{name}" for name in lacks)
        raise RankroomError(
            LACKS.format(package=package, version=metadata.version(package), missing=missing,
                         known=_known(package))
        )  # fmt: skip


def _known(package: str) -> str:
    """The versions that this version of Rankroom was tried with, as pip takes them."""
    try:
        wanted = metadata.requires("rankroom") or []
    except metadata.PackageNotFoundError:
        wanted = []
    return next((each for each in wanted if each.startswith(package)), package)


LACKS = (
    "Rankroom does not work with this {package} ({version}), which has no {missing}: "
    "`pip install '{known}'` brings one that it knows"
)
