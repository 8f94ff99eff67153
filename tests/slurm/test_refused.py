"""Jobs that the scheduler refuses, or accepts but never starts, as a laptop's user is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import Machines
from remote import Laptop, until_nothing_runs

START = """
def begin(name, **asked):
    paths = start.launch(site.load("test").asking(**asked), name)
    deadline = time.monotonic() + 120
    while (info := paths.read()).remote.state not in ("failed", "ended", "running"):
        assert time.monotonic() < deadline, info.remote
        time.sleep(0.05)
    return [info.remote.state, info.message or info.remote.words]
"""


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    with Laptop(machines, {"test": profile()}) as made:
        made.do(START)
        yield made


CASES = {
    "of an unknown partition": (
        {"partition": "gpuu"},
        ["invalid partition specified: gpuu", "Set `partition` in [job] of", "(it is: gpuu)"],
    ),
    "for others": ({"partition": "staff"}, ["not permitted to use this partition"]),
    "over the limit": ({"time": "05:00:00"}, ["would never start", "more time"]),
    "of an account that is not known": (
        {"partition": "closed", "account": "other"},
        ["would never start", "account not known"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_cannot_start_is_explained(machines: Machines, laptop: Laptop, case: str):
    asked, said = CASES[case]
    state, words = laptop.do(f"begin({case.replace(' ', '-')!r}, **{asked!r})", 180)
    assert state == "failed"
    for each in said:
        assert each in words
    until_nothing_runs(machines)
    assert jobs(machines) == []
