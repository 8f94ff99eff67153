"""Workshops for tests: a folder that other users can enter, a plan, and learners' seats."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rankroom.workshop.seat import Seat, SeatStatus
from rankroom.workshop.workshop_folder import Folder, open_folder
from rankroom.workshop.workshop_plan import Plan

NOON = datetime(2026, 5, 14, 12, 0, tzinfo=timezone.utc)


@contextmanager
def reachable() -> Iterator[Path]:
    """A folder below /tmp that all users may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="rankroom-test-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def plan(folder: Path, **more: Any) -> Plan:
    """A plan for one hour, starting now, for any learner."""
    now = datetime.now(timezone.utc)
    known: dict[str, Any] = {
        "name": "Test workshop", "folder": str(folder), "way": "node",
        "lessons": ((1, 15), (2, 20)), "starts": now, "ends": now + timedelta(hours=1),
    }  # fmt: skip
    return Plan(**{**known, **more})


def opened(folder: Path, **more: Any) -> Folder:
    """The folder of an open workshop."""
    return open_folder(plan(folder, **more))


def seat(user: str, heard: float | None = None, **status: Any) -> Seat:
    """A seat as the teacher sees it."""
    now = time.time() if heard is None else heard
    return Seat(hash(user) % 1000, user, now, f"{user}-0", SeatStatus(user=user, at=now, **status))
