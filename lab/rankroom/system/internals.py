"""Check that other packages still have the private names that Rankroom uses."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Any

from rankroom.errors import RankroomError


def demand(package: str, owner: Any, names: Iterable[str]) -> None:
    """Raise RankroomError if `owner`, a part of `package`, lacks one of the attributes `names`."""
    if lacks := [name for name in names if not hasattr(owner, name)]:
        whose = getattr(owner, "__name__", type(owner).__name__)
        missing = ", ".join(f"{whose}.{name}" for name in lacks)
        raise RankroomError(
            LACKS.format(package=package, version=metadata.version(package), missing=missing,
                         known=_known(package))
        )  # fmt: skip


def _known(package: str) -> str:
    """Return the versions of `package` that this Rankroom supports, as a requirement for pip."""
    try:
        wanted = metadata.requires("rankroom") or []
    except metadata.PackageNotFoundError:
        wanted = []
    return next((each for each in wanted if each.startswith(package)), package)


LACKS = (
    "Rankroom does not support {package} {version}, which lacks {missing}: "
    "`pip install '{known}'` installs a supported version"
)
