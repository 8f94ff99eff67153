"""`rankroom workshop` as it is typed: what is checked, what is refused, in a sentence each."""

import asyncio
import json
import os
import pwd
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import another_user
import rankroom
from rankroom.cli import main, watched_workshop
from rankroom.errors import UsageError
from rankroom.ssh.host import LocalHost
from rankroom.workshop import seat, workshop_plan
from rankroom.workshop.invitation import Invitation, invitation
from rankroom.workshop.seat import SeatStatus
from rankroom.workshop.tiles import exercises
from rankroom.workshop.workshop_folder import Folder, open_folder
from workshops import opened, plan, reachable

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def base(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with reachable() as folder:
        yield folder


@pytest.fixture
def typed(base: Path) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, ["workshop", *map(str, words)])


@pytest.fixture
def written(base: Path) -> Callable[..., Path]:
    """Write a plan as a file."""

    def write(**more) -> Path:
        file = base / "plan.toml"
        file.write_text(replace(plan(base / "may"), **more).to_toml())
        return file

    return write


# -- the teacher


def test_a_plan_is_written_once(base: Path, typed: Callable):
    assert "wrote" in typed("new", base / "plan.toml").output
    again = typed("new", base / "plan.toml")
    assert again.exit_code == 1 and "is there already" in again.output


def test_a_good_plan_is_checked_without_leaving_anything(
    base: Path, typed: Callable, written: Callable
):
    done = typed("check", written(learners=(ME,)))
    assert done.exit_code == 0, done.output
    assert "✓ learners: all 1 accounts exist" in done.output
    assert "✓ folder: " in done.output and "can be made" in done.output
    assert [each.name for each in base.iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"learners": (ME, "nobody-of-that-name")}, "there is no account nobody-of-that-name"),
        ({"learners": (ME, ME)}, f"! learners: named twice: {ME}"),
        ({"ends": datetime(2020, 1, 2, tzinfo=timezone.utc), "starts": None}, "it was over on 02"),
        ({"lessons": ((1, 50), (2, 60))}, "! dates: 2 lessons in 110 minutes"),
        ({"ranks": 1}, "01 Hello, ranks needs 2 ranks, and a seat has 1"),
        ({"folder": "/proc/may"}, "✗ folder: cannot make it in /proc"),
        ({"way": "hub", "hub": "http://127.0.0.1:9"}, "does not answer as JupyterHub"),
        ({"way": "ssh", "site": "nowhere"}, "sbatch"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(
    typed: Callable, written: Callable, more: dict[str, object], said: str
):
    done = typed("check", written(**more))
    assert said in done.output
    assert done.exit_code == (0 if said.startswith("!") else 1)


def test_learners_who_cannot_enter_are_named(base: Path, typed: Callable, written: Callable):
    base.chmod(0o750)
    done = typed("check", written(learners=("nobody", ME)))
    if os.geteuid() == 0:
        assert (
            "! folder: by its modes" in done.output and "cannot be entered by nobody" in done.output
        )


def test_a_folder_that_a_group_could_replace_is_warned_of(
    base: Path, typed: Callable, written: Callable
):
    if os.geteuid() != 0:
        pytest.skip("another group is needed")
    os.chown(base, -1, 54321)
    base.chmod(0o775)
    assert f"! folder: the group of {base} could put another" in typed("check", written()).output
    base.chmod(0o1775)
    assert "✓ folder" in typed("check", written()).output


def test_open_says_what_learners_type(base: Path, typed: Callable, written: Callable):
    done = typed("open", written())
    assert f"rankroom workshop join {base / 'may'}\n" in done.output
    assert "laptop" not in done.output  # one logs in to a node
    done = typed("open", written(way="ssh", site="perlmutter"))
    assert f"rankroom workshop join perlmutter.nersc.gov:{base / 'may'}" in done.output


def test_what_is_told_is_told(base: Path, typed: Callable):
    folder = opened(base / "may")
    cell = base / "cell.py"
    cell.write_text("print(1)\n")
    own = seat.take(folder.path, folder.owner_uid)
    for words in (
        ["say", folder.path, "all", "aboard"], ["offer-cell", folder.path, cell, "--title", "one"],
        ["timer", folder.path, "5", "ring.1"], ["catch-up", folder.path, ME],
        ["reset", folder.path, ME],
    ):  # fmt: skip
        assert typed(*words).exit_code == 0
    told = folder.news()[1:]
    assert [each.kind for each in told] == ["message", "cell", "timer", "catch up", "reset"]
    assert (told[0].text, told[1].text, told[2].title) == ("all aboard", "print(1)\n", "ring.1")
    assert told[3].is_for(own.name) and told[4].is_for(own.name)
    assert "nobody has no seat" in typed("reset", folder.path, "nobody").output


def test_catching_up_goes_as_far_as_the_teacher_says(base: Path, typed: Callable):
    folder = opened(base / "may")
    seat.take(folder.path, folder.owner_uid)
    first, second = exercises(folder.plan())[:2]
    for words in ([], [second]):
        assert typed("catch-up", folder.path, ME, *words).exit_code == 0
    assert [each.text for each in folder.news()[1:]] == ["", second]
    done = typed("catch-up", folder.path, ME, "ring.99")
    assert done.exit_code != 0
    assert f"no exercise ring.99 in this workshop; there are {first}, {second}" in done.output


def test_the_teacher_watches(base: Path, typed: Callable):
    folder = opened(base / "may", learners=(ME, "zoe"))
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="stuck", why="rank 0 waits in allreduce", lesson=1))
    done = typed("watch", folder.path, "--once", "--exercises")
    assert "1 of 2 are here" in done.output
    assert f"■  {ME}" in done.output and "rank 0 waits in allreduce" in done.output
    assert "zoe" in done.output and "has no seat yet" in done.output
    assert "hello.1" in done.output
    found = json.loads(typed("watch", folder.path, "--once", "--json").output)
    assert [each["needs"] for each in found["tiles"]] == ["stuck", ""]


def test_progress_is_collected(base: Path, typed: Callable):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(progress={"tries": {"hello.1": 2}, "passed": {"hello.1": "2026-05-14"}}))
    assert "1 learners" in typed("collect", folder.path, "-o", base / "out.csv").output
    head, line = (base / "out.csv").read_text().splitlines()
    assert head.startswith("learner,lesson,passed,tried,quiz before,quiz after,shares,hello.1,")
    assert line.startswith(f"{ME},,1,1,,,yes") and "2026-05-14" in line


def test_a_workshop_ends_when_all_seats_have(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="ended"))
    monkeypatch.setattr("rankroom.workshop.workshop_folder.WARNING_S", 0.2)
    done = typed("end", folder.path)
    assert done.exit_code == 0, done.output
    assert "Test workshop has ended, and no job of it is left" in done.output
    assert folder.is_over()
    own.write(SeatStatus(state="running"))
    monkeypatch.setattr(watched_workshop, "GRACE_S", 0.2)
    assert f"{ME}'s JupyterLab has not said that it has ended" in typed("end", folder.path).output


@pytest.mark.parametrize(
    "words", [["watch", "--once"], ["say", "hello"], ["timer", "5"], ["collect"], ["end"],
              ["catch-up", ME], ["show", "--off"]],
)  # fmt: skip
def test_who_is_not_the_teacher_is_told_so(base: Path, words: list[str]):
    folder = opened(base / "may")

    def there() -> str:
        os.environ["RANKROOM_HOME"] = "/nonexistent"
        command = ["workshop", words[0], str(folder.path), *words[1:]]
        return CliRunner().invoke(main, command).output

    said = another_user.call(there)
    assert f"the workshop in {folder.path} is {ME}'s, who alone sees its learners" in said
    assert [each.kind for each in folder.news()] == ["open"]


# -- the learner


def test_without_a_seat_there_is_no_hand(typed: Callable):
    for words in (["hand"], ["share", "--off"], ["leave"]):
        done = typed(*words)
        assert done.exit_code == 1 and "you have no seat in a workshop" in done.output


def test_a_learner_sets_what_is_shared(base: Path, typed: Callable):
    folder = opened(base / "may")
    seat.take(folder.path, folder.owner_uid)
    assert "your hand is up" in typed("hand").output
    assert "nothing else" in typed("share", "--off").output
    kept = seat.read_choices()
    assert kept.hand_since > 0 and not kept.shares
    typed("hand", "--down")
    typed("share")
    kept = seat.read_choices()
    assert kept.hand_since == 0 and kept.shares
    assert "you have no seat" in typed("leave").output
    assert folder.seats() == []


def test_a_hub_is_led_to(base: Path, typed: Callable):
    folder = opened(base / "may", way="hub", hub="https://hub.site/base/")
    done = typed("join", folder.path, "--no-browser")
    address = "https://hub.site/base/hub/user-redirect/lab/tree/Test-workshop/01_hello_ranks.ipynb"
    assert f"open {address}\n" in done.output


def test_what_cannot_be_joined_is_said(base: Path, typed: Callable):
    assert "there is no workshop in /none" in typed("join", "/none").output
    folder = opened(base / "may")
    folder._tell(kind="end", until=time.time() - 1)
    assert "the workshop Test workshop is over" in typed("join", folder.path).output


def invited(**more) -> Invitation:
    return Invitation(replace(plan(Path("/x")), **more), "/x", "", "eve", "tom")


NOW = datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"learners": ("ada",)}, "eve is not in the list of learners of Test workshop: ask tom"),
        ({"ends": NOW - timedelta(hours=1), "starts": None}, "the workshop Test workshop is over"),
        ({"starts": NOW + timedelta(days=2), "ends": None}, "Test workshop begins on "),
        ({"version": "99.0"}, "was opened with Rankroom 99.0, and "),
    ],
)
def test_an_invitation_that_does_not_hold_is_refused(more: dict[str, object], said: str):
    with pytest.raises(UsageError) as error:
        invited(**more).demand_open(time.time())
    assert said in str(error.value)


def test_an_invitation_holds_for_who_is_listed_and_for_the_teacher():
    for learners in ((), ("eve",)):
        invited(learners=learners, version=rankroom.__version__).demand_open(time.time())
    replace(invited(learners=("ada",)), user="tom").demand_open(time.time())


def test_the_job_of_a_seat_knows_the_workshop_and_runs_no_line_of_the_teachers():
    one = replace(invited(site="nowhere", preload="torch"), folder="/x/it's $(id)")
    found = one.site(time.time())
    assert found.environment.setup == ("cd", "export RANKROOM_WORKSHOP='/x/it'\"'\"'s $(id)'")
    assert found.environment.preload == "torch"
    with pytest.raises(UsageError, match="there is no profile of nowhere here"):
        replace(one, login="login").site(time.time())


def test_an_invitation_over_ssh_is_the_same(base: Path):
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


def test_a_planted_plan_is_refused_over_ssh(base: Path):
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    folder = opened(base / "may")
    os.chown(folder.path / "workshop.toml", 54321, 54321)
    with pytest.raises(UsageError, match="there is no workshop in login:"):
        asyncio.run(invitation(f"login:{folder.path}", LocalHost()))


def test_a_plan_in_the_folder_is_what_was_opened(base: Path, typed: Callable, written: Callable):
    typed("open", written(way="ssh", site="perlmutter"))
    found = Folder(base / "may").plan()
    assert found.login == "perlmutter.nersc.gov"
    assert found == workshop_plan.opened(workshop_plan.read(base / "plan.toml"))
