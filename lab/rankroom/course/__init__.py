"""The course: its lessons, and exercises that check themselves on the reader's own ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankroom.course.trial import check as check


def __getattr__(name: str) -> Any:
    if name == "check":  # not above: ranks import this package, and must not load the cluster
        from rankroom.course.trial import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
