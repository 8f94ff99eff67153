"""Invitations to a workshop: who may accept one; locally and over ssh they are the same."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import rankroom
from rankroom.errors import UsageError
from rankroom.ssh.host import LocalHost
from rankroom.workshop import seat
from rankroom.workshop.invitation import Invitation, at, invitation, job_of, keep_job
from rankroom.workshop.owned_files import account
from rankroom.workshop.seat import SeatStatus
from rankroom.workshop.workshop_folder import open_folder
from workshops import opened, plan, reachable

ME = account(os.getuid())


@pytest.fixture
def base(home: Path) -> Iterator[Path]:
    with reachable() as folder:
        yield folder


def invited(**more) -> Invitation:
    return Invitation(replace(plan(Path("/x")), **more), "/x", "", "eve", "tom")


NOW = datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"learners": ("ada",)}, "eve is not in the list of learners of Test workshop: ask tom"),
        ({"ends": NOW - timedelta(hours=1), "starts": None}, "the workshop Test workshop is over"),
        ({"starts": NOW + timedelta(days=2), "ends": None}, "Test workshop begins on "),
        ({"version": "99.0"}, "was opened with Rankroom 99.0, but "),
    ],
)
def test_an_invalid_invitation_is_refused_with_the_reason(more: dict[str, object], said: str):
    with pytest.raises(UsageError) as error:
        invited(**more).demand_open(time.time())
    assert said in str(error.value)


def test_an_invitation_is_valid_for_listed_learners_and_the_teacher():
    for learners in ((), ("eve",)):
        invited(learners=learners, version=rankroom.__version__).demand_open(time.time())
    replace(invited(learners=("ada",)), user="tom").demand_open(time.time())
    soon = invited(starts=NOW + timedelta(days=1), ends=None)
    replace(soon, user="tom").demand_open(time.time())  # for a trial on the day before


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("me@login:/x//may/../june/", ("me@login", "/x/june")),
        ("/x/may/../june/", ("", "/x/june")),
        ("/x/./june", ("", "/x/june")),
    ],
)
def test_folder_paths_are_normalized(where: str, found: tuple[str, str]):
    assert at(where) == found


def test_the_job_of_a_seat_sets_only_the_workshop_and_quotes_its_folder():
    one = replace(invited(site="nowhere", preload="torch"), folder="/x/it's $(id)")
    found = one.site(time.time())
    assert found.environment.setup == ("cd", "export RANKROOM_WORKSHOP='/x/it'\"'\"'s $(id)'")
    assert found.environment.preload == "torch"
    with pytest.raises(UsageError, match="there is no profile of nowhere here"):
        replace(one, login="login").site(time.time())


def test_an_invitation_over_ssh_equals_the_local_one(base: Path):
    folder = opened(base / "may", learners=(ME,))
    here = asyncio.run(invitation(str(folder.path), LocalHost()))
    there = asyncio.run(invitation(f"login:{folder.path}", LocalHost()))
    assert replace(there, login="") == here
    assert here.user == here.teacher == ME
    folder._tell(kind="end", until=time.time() - 1)
    for where in (str(folder.path), f"login:{folder.path}"):
        with pytest.raises(UsageError, match="is over"):
            asyncio.run(invitation(where, LocalHost()))
    open_folder(plan(folder.path))
    asyncio.run(invitation(f"login:{folder.path}", LocalHost()))
    with pytest.raises(UsageError, match="there is no workshop in login:/none"):
        asyncio.run(invitation("login:/none", LocalHost()))


def test_a_torn_line_of_news_is_ignored_over_ssh(base: Path):
    folder = opened(base / "may")
    news = folder.path / "teacher" / "news.jsonl"
    folder._tell(kind="end", until=time.time() - 1)
    open_folder(plan(folder.path))
    with news.open("a") as file:
        file.write('{"at": 1.0, "kind": "end"')  # as on a full disk
    asyncio.run(invitation(f"login:{folder.path}", LocalHost()))


def test_a_job_that_was_submitted_elsewhere_is_found_by_its_seat(base: Path):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(job="7"))
    assert job_of(str(folder.path), "site") == "7"
    keep_job(str(folder.path), "site", "8")
    assert job_of(str(folder.path), "site") == "8"
    assert job_of(str(folder.path.with_name("june")), "site") == ""


def test_a_planted_plan_is_refused_over_ssh(base: Path):
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    folder = opened(base / "may")
    os.chown(folder.path / "workshop.toml", 54321, 54321)
    with pytest.raises(UsageError, match="there is no workshop in login:"):
        asyncio.run(invitation(f"login:{folder.path}", LocalHost()))


def test_the_teachers_trial_on_the_day_before_does_not_wait_for_the_reservation():
    one = invited(site="nowhere", reservation="course", starts=NOW + timedelta(days=1), ends=None)
    assert one.site(time.time()).job.reservation == ""
    assert one.site(time.time() + 23.5 * 3600).job.reservation == "course"
