"""How `make workshop` judges its measurements: failed learners, the console's delay, and exceeded
limits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import workshop_trial
from workshop_trial import Result, Trial, View


class Home:
    """Learners' homes, with the records that the trial reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def home(self, user: str) -> Path:
        return self.folder / user

    def ran(self, user: str, name: str, start: float, end: float) -> None:
        folder = self.home(user) / "own/data/runs" / name
        folder.mkdir(parents=True)
        run = {"id": name, "start": start * 1e6, "end": end * 1e6}
        (folder / "run.json").write_text(json.dumps(run))


def tile(heard: float, since: float = 0.0, state: str = "") -> dict[str, Any]:
    run = {"since": since, "state": state} if since else {}
    return {"heard": heard, "status": {"run": run}}


@pytest.fixture
def homes(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def trial(homes: Home) -> Trial:
    workshop: Any = SimpleNamespace(learners=["ada", "bob"], machines=homes)
    made = Trial(workshop, print)
    made.result.broken = ["ada", "bob"]
    return made


def test_the_consoles_delay_is_measured_against_the_learners_records(trial: Trial, homes: Home):
    homes.ran("ada", "r1", 100.0, 110.0)
    trial.views = [
        View(99.0, {"ada": tile(98.0), "bob": tile(98.5)}),
        View(101.5, {"ada": tile(101.0, 100.0, "running"), "bob": tile(98.5)}),
        View(114.0, {"ada": tile(113.0, 100.0, "done"), "bob": tile(112.5)}),
        View(130.0, {"ada": tile(129.0, 100.0, "done"), "bob": tile(129.5)}),
    ]
    trial.judge()
    assert trial.result.failed == []
    assert trial.result.late == [1.5, 4.0]
    assert trial.result.seats_s == 0.0 and trial.result.apart_s == 3.0
    assert trial.result.missed == ["the console was 4.0 s late, and not 3"]


def test_the_delay_of_the_browser_is_reported_separately(trial: Trial, homes: Home):
    homes.ran("ada", "r1", 100.0, 110.0)
    trial.views = [
        View(at, {"ada": tile(at, 100.0, state), "bob": tile(at)})
        for at, state in ((101.0, "running"), (111.0, "done"), (130.0, "done"))
    ]
    trial.in_browser = True
    trial.pages = [View(view.at + 2.5, view.tiles) for view in trial.views]
    trial.judge()
    assert trial.result.late == [1.0, 1.0]
    assert trial.result.late_in_browser == [3.5, 3.5]
    [line] = [line for line in trial.result.lines if line.startswith("console in a browser")]
    assert line == "console in a browser: 3.5 s late at most, 3.5 s in the median, of 2"
    assert trial.result.missed == ["the console in a browser was 3.5 s late, and not 3"]


def test_learners_without_a_seat_or_failure_and_runs_never_shown_are_named(
    trial: Trial, homes: Home
):
    homes.ran("ada", "r1", 100.0, 110.0)
    trial.result.broken = []
    trial.views = [View(at, {"ada": tile(at)}) for at in (90.0, 200.0)]
    trial.judge()
    assert trial.result.failed == [
        "ada was never seen to fail: no ranks?",
        "the console never showed run r1 of ada",
        "bob never had a seat",
    ]


GOOD: dict[str, Any] = {
    "late": [0.4, 2.9], "seats_s": 119.0, "writer_share": 0.004, "console_s": 600.0,
    "requests": {"REQUEST_JOB_INFO": 3000},
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"late": [0.1, 30.0]}, "the console was 30.0 s late, and not 3"),
        ({"late": []}, "the console showed no start and no end of a run"),
        ({"seats_s": 300.0}, "seats came within 300 s, and not 120"),
        ({"writer_share": 0.02}, "a seat's writer took 2.00 % of a core, and not less than 1"),
        ({"requests": {"A": 6800, "B": 1}}, "slurmctld had 6801 requests, and not 6800"),
    ],
)
def test_a_measurement_over_its_limit_fails_the_trial(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], said: str
):
    result = Result(40, **{**GOOD, **more})
    assert result.missed == ([said] if said else [])
    assert (f"too much: {said}" in result.lines) == bool(said)

    class Machines(SimpleNamespace):
        up = down = close = lambda self: None

    monkeypatch.setattr(workshop_trial, "missing", lambda: "")
    monkeypatch.setattr(workshop_trial, "Machines", Machines)
    monkeypatch.setattr(workshop_trial, "Workshop", lambda machines, users: machines)
    monkeypatch.setattr(
        workshop_trial,
        "Trial",
        lambda workshop, say, in_browser: SimpleNamespace(run=lambda: result),
    )
    assert workshop_trial.main(["40"]) == bool(said)
    result.failed.append("ada: nothing")
    assert workshop_trial.main(["40"]) == 1
