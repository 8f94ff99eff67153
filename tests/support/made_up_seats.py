"""Seats of forty made-up learners of a workshop, in various states, for tests.

Their accounts do not exist on this machine. Only root can give a file to another account.

    made_up_seats.py open FOLDER [COUNT]    open a workshop, and fill its seats
    made_up_seats.py hand FOLDER NAME       a learner raises a hand
    made_up_seats.py pass FOLDER NAME       a learner passes the exercise
    made_up_seats.py give FOLDER            give the workshop to a teacher's account
"""

from __future__ import annotations

import json
import os
import pwd
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rankroom.workshop.seat import SeatStatus
from rankroom.workshop.workshop_folder import Folder, open_folder
from rankroom.workshop.workshop_plan import Plan

FIRST_UID = 61_001
COUNT = 40
TEACHER_UID = 61_000
FRESH_S = 3600.0  # files are dated ahead, so that none becomes stale during a test
known = pwd.getpwuid


def name_accounts() -> None:
    """Let this process resolve the uids of learners and teacher to names."""

    def getpwuid(uid: int) -> Any:
        if FIRST_UID <= uid < FIRST_UID + COUNT:
            return SimpleNamespace(pw_name=name_of(uid - FIRST_UID))
        return SimpleNamespace(pw_name="teacher") if uid == TEACHER_UID else known(uid)

    pwd.getpwuid = getpwuid


def name_of(number: int) -> str:
    return f"learner{number + 1:02}"


def plan(folder: Path) -> Plan:
    """A plan by which two lessons are over, and the third has begun."""
    starts = datetime.now().astimezone() - timedelta(minutes=40)
    lessons = ((1, 15), (2, 20), (3, 20))
    return Plan(
        name="Distributed training", teacher="The teacher", folder=str(folder), way="node",
        lessons=lessons, starts=starts, ends=starts + timedelta(hours=8),
    )  # fmt: skip


HANG = (
    "stuck for 42 s: rank 0 waits in dist.all_reduce at cell line 9; rank 1 is at cell line 12, "
    "in Tensor.item"
)
RING_1 = {"hello.1": 1, "hello.2": 1, "hello.3": 2, "collectives.1": 1}


def status(number: int, now: float) -> SeatStatus:
    """The status of a seat: one of each kind that needs help, the others making progress."""
    tries = {**RING_1, "ring.1": 1 + number % 3, "ring.2": 1 + number % 4}
    passed = [name for name in tries if name != "ring.2" or number % 5 < 3]
    run = {"id": "r", "title": "reduce_scatter(chunks)", "state": "done", "since": now - 30}
    usual = SeatStatus(
        user=name_of(number), at=now, state="idle", lesson=3,
        exercise={
            "name": "ring.2", "passed": "ring.2" in passed, "tries": tries["ring.2"], "at": now,
        },
        progress={"tries": tries, "passed": dict.fromkeys(passed, "2026-05-14")},
        ranks={"alive": 2, "of": 2}, run=run, host=f"node{number % 4 + 1:02}",
        job=str(4700 + number), ends_at=now + 7200, since=now - 20,
    )  # fmt: skip
    busy = replace(usual, state="running", run={**run, "state": "running"})
    early = {"tries": {"hello.1": 2}, "passed": {"hello.1": "2026-05-14"}}
    first = {"name": "hello.1", "passed": True, "tries": 2, "at": now}
    error = "rank 1, cell line 4: RuntimeError: shape '[3, 4]' is invalid for input of size 10"
    special = {
        3: replace(usual, hand=True, hand_since=now - 250),
        7: replace(busy, hand=True, hand_since=now - 40),
        11: replace(busy, state="stuck", why=HANG, since=now - 42),
        17: replace(busy, state="stuck", why=HANG, since=now - 12),
        19: replace(usual, state="failed", why=error),
        23: replace(
            usual, state="failed", why="1 of 2 ranks ready; rank 1 was killed by signal 9",
            ranks={"alive": 1, "of": 2},
        ),
        29: replace(usual, lesson=1, exercise=first, progress=early),
        31: replace(usual, shares=False),
        37: SeatStatus(user=name_of(number), at=now),
    }  # fmt: skip
    return special.get(number, busy if number % 3 == 0 else usual)


def put(folder: Folder, number: int, seat: SeatStatus, heard: float) -> None:
    """Write a seat as its learner's server does."""
    uid = FIRST_UID + number
    file = folder.path / "seats" / f"{name_of(number)}-{number:032x}"
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(json.dumps(seat.to_json()))
    fresh.chmod(0o644)
    os.chown(fresh, uid, uid)
    os.utime(fresh, (heard, heard))
    fresh.replace(file)


def fill(folder: Folder, count: int = COUNT) -> None:
    now = time.time()
    for number in range(count):
        # One learner's server is silent, as with a closed laptop.
        heard = now - 190 if number == 27 else now + FRESH_S
        put(folder, number, status(number, now), heard)


def make(place: Path, count: int = COUNT) -> Folder:
    """Open a workshop with `count` learners."""
    folder = open_folder(plan(place))
    fill(folder, count)
    return folder


def main(what: str, place: str, *more: str) -> None:
    folder, now = Folder(place), time.time()
    number = int(more[0].removeprefix("learner")) - 1 if what in ("hand", "pass") else 0
    if what == "open":
        make(Path(place), int(more[0]) if more else COUNT)
    elif what == "hand":
        up = replace(status(number, now), hand=True, hand_since=now)
        put(folder, number, up, now + FRESH_S)
    elif what == "pass":
        tried = {"name": "ring.2", "passed": True, "tries": 9, "at": now}
        put(folder, number, replace(status(number, now), exercise=tried), now + FRESH_S)
    elif what == "give":
        for path in (folder.path / "workshop.toml", folder.path):
            os.chown(path, TEACHER_UID, TEACHER_UID)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
