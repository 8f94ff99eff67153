"""Problems of a plan that `rankroom workshop check` warns of."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.scheduler import site as sites
from rankroom.system.commands import Completed
from rankroom.workshop import plan_check
from rankroom.workshop.workshop_plan import SEATS_OPEN_BEFORE_START_S, Plan

STARTS = datetime(2026, 12, 1, 9, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("early", "state"),
    [(SEATS_OPEN_BEFORE_START_S, "ok"), (SEATS_OPEN_BEFORE_START_S / 2, "warned")],
)
def test_check_warns_if_learners_may_join_before_the_reservation_begins(early: float, state: str):
    begin = int(STARTS.timestamp() - early)
    said = f"ReservationName=r StartTime={begin} EndTime={begin + 99_999} NodeCnt=4 Users=(null)"

    async def call(argv: Any, seconds: float) -> Completed:
        return Completed(tuple(argv), 0, said)

    plan, scheduler = Plan(reservation="r", starts=STARTS), SimpleNamespace(call=call)
    found = asyncio.run(plan_check._reservation(plan, scheduler))  # type: ignore[arg-type]
    assert found.state == state and found.words.startswith("r has 4 nodes until")
    assert ("their jobs wait until then" in found.words) == (state == "warned")


def test_profile_settings_not_passed_on_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    sites.own_folder().mkdir(parents=True)
    profile = '[job]\naccount = "mine"\nqos = "fast"\nreservation = "r"'
    (sites.own_folder() / "here.toml").write_text(profile)
    plan = Plan(name="w", folder="/w", site="here", account="course")
    left = plan_check._left_behind(plan, plan.of_site())
    assert left == ["qos", "reservation"]
