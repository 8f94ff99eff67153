"""A seat's server: what it writes and how often, which news it reads, and how it ends."""

import asyncio
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rankroom.course import progress
from rankroom.course.lessons import LESSONS
from rankroom.errors import UsageError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.system import process_tree
from rankroom.workshop import owned_files, seat, sharing, workshop_answers
from rankroom.workshop.sharing import Sharing
from rankroom.workshop.workshop_folder import Folder, open_folder
from workshops import opened, plan, reachable


class Clock:
    """A clock that advances on request only."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time() + self.now - 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sharing, "time", made)
    return made


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with reachable() as base:
        yield opened(base / "may")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def shared(folder: Folder, clock: Clock, said: list[str]) -> Sharing:
    made = Sharing(folder.path, tell=said.append)
    made.look()
    return made


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times at which a seat was written."""
    found: list[float] = []
    whole = owned_files.write_shared

    def write(path: Path, text: str) -> None:
        found.append(sharing.time.monotonic())
        whole(path, text)

    monkeypatch.setattr(seat, "write_shared", write)
    return found


def pass_time(shared: Sharing, clock: Clock, seconds: float, each: float = 0.5) -> None:
    for _ in range(round(seconds / each)):
        clock.now += each
        shared.look()


def test_a_server_takes_a_seat_and_copies_the_notebooks(shared: Sharing, folder: Folder, tmp_path):
    assert len(folder.seats()) == 1
    copies = {each.name for each in (tmp_path / "Test-workshop").iterdir()}
    # All lessons, as those in the plan link to others, but not the notes for teachers.
    assert copies == {each.file for each in LESSONS}
    assert shared.trouble == ""


def test_all_files_that_lessons_link_to_are_copied(shared: Sharing, tmp_path: Path):
    folder = tmp_path / "Test-workshop"
    for notebook in folder.iterdir():
        for named in re.findall(r"\]\((\w[^):]*\.(?:ipynb|md))\)", notebook.read_text()):
            assert (folder / named).exists(), f"{notebook.name}: {named}"


def test_the_folder_of_copies_is_private_under_any_umask(
    folder: Folder, clock: Clock, tmp_path: Path
):
    before = os.umask(0)
    try:
        Sharing(folder.path).look()
    finally:
        os.umask(before)
    assert (tmp_path / "Test-workshop").stat().st_mode & 0o7777 == 0o700


def test_a_deleted_folder_of_notebooks_is_restored_but_a_notebook_is_not(
    shared: Sharing, clock: Clock, tmp_path: Path
):
    copies = tmp_path / "Test-workshop"
    (copies / "02_collectives.ipynb").unlink()
    pass_time(shared, clock, 60)
    assert not (copies / "02_collectives.ipynb").exists()
    shutil.rmtree(copies)
    pass_time(shared, clock, 21)
    assert {each.name for each in copies.iterdir()} == {each.file for each in LESSONS}
    assert shared.trouble == ""


def test_a_new_plan_gets_its_own_copies_at_once(
    shared: Sharing, folder: Folder, clock: Clock, tmp_path: Path
):
    open_folder(plan(folder.path, name="Second day"))
    pass_time(shared, clock, 1)
    assert (tmp_path / "Second-day" / "01_hello_ranks.ipynb").exists()


def test_notebooks_have_no_output_and_are_never_written_over(
    shared: Sharing, folder: Folder, clock: Clock, tmp_path: Path
):
    mine = tmp_path / "Test-workshop" / "01_hello_ranks.ipynb"
    cells = json.loads(mine.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    mine.write_text("mine")
    (tmp_path / "Test-workshop" / "02_collectives.ipynb").unlink()
    Sharing(folder.path).look()
    assert mine.read_text() == "mine"
    assert (tmp_path / "Test-workshop" / "02_collectives.ipynb").exists()


def test_a_seat_is_written_at_most_every_2_s_and_at_least_every_20_s(
    shared: Sharing, clock: Clock, writes: list[float]
):
    pass_time(shared, clock, 60)
    assert 3 <= len(writes) <= 4  # nothing happened
    del writes[:]
    for number in range(40):  # a change every half second
        progress.note(f"ring.{number}", passed=True)
        pass_time(shared, clock, 0.5)
    assert len(writes) == 10
    assert min(b - a for a, b in itertools.pairwise(writes)) >= 2.0


def test_a_change_is_there_within_two_and_a_half_seconds(
    shared: Sharing, folder: Folder, clock: Clock
):
    for number in range(9):  # at any moment after the last write
        pass_time(shared, clock, number / 2)
        progress.begin(number)
        pass_time(shared, clock, 2.5)
        assert folder.seats()[0].status.lesson == number


def test_hand_and_sharing_choices_reach_the_seat(shared: Sharing, folder: Folder, clock: Clock):
    progress.begin(2)
    seat.mine().hand(True)
    pass_time(shared, clock, 2.5)
    [found] = folder.seats()
    assert found.status.hand and found.status.lesson == 2
    seat.mine().share(False)
    pass_time(shared, clock, 2.5)
    [found] = folder.seats()
    assert found.status.hand and not found.status.shares
    assert found.status.lesson is None
    assert "ring" not in (folder.path / "seats" / found.key).read_text()
    seat.mine().hand(False)
    seat.mine().share(True)
    pass_time(shared, clock, 2.5)
    [found] = folder.seats()
    assert not found.status.hand and found.status.lesson == 2


def test_a_learner_without_an_open_page_is_shown_as_away(folder: Folder, clock: Clock):
    open_pages = [1]
    shared = Sharing(folder.path, pages=lambda: open_pages[0])
    pass_time(shared, clock, 3)
    assert folder.seats()[0].status.away_since == 0
    open_pages[0] = 0
    pass_time(shared, clock, 3)
    left = folder.seats()[0].status.away_since
    pass_time(shared, clock, 60)
    assert folder.seats()[0].status.away_since == left > 0
    open_pages[0] = 1
    pass_time(shared, clock, 3)
    assert folder.seats()[0].status.away_since == 0


def test_a_seat_that_was_left_is_not_written_again(shared: Sharing, folder: Folder, clock: Clock):
    seat.mine().leave()
    pass_time(shared, clock, 60)
    assert folder.seats() == []
    with pytest.raises(UsageError, match="you no longer have a seat"):
        shared.hand(True)
    seen = workshop_answers.own(shared)
    assert seen["shared"] is None and "nothing is shared" in seen["trouble"]


def test_a_seat_that_was_left_during_a_write_is_removed(
    shared: Sharing, folder: Folder, clock: Clock
):
    own = seat.mine()
    own.leave()
    own.path.write_text('{"version": 1}')
    shared.look()
    assert not own.path.exists()


def test_joining_another_workshop_removes_the_previous_seat(
    shared: Sharing, folder: Folder, clock: Clock
):
    other = opened(folder.path.with_name("june"))
    Sharing(other.path).look()
    shared.look()
    assert folder.seats() == [] and len(other.seats()) == 1


def test_a_hand_is_down_when_the_server_begins_and_when_it_ends(shared: Sharing, folder: Folder):
    shared.hand(True)
    assert seat.read_choices().hand_since > 0
    Sharing(folder.path).look()
    assert seat.read_choices().hand_since == 0
    shared.hand(True)
    shared.end()
    assert not folder.seats()[0].status.hand


def test_answering_one_offer_leaves_the_others_open(shared: Sharing, folder: Folder):
    [own] = folder.seats()
    folder.request(own.user, "reset")
    folder.request(own.user, "catch up")
    shared.look()
    reset, catch_up = workshop_answers.own(shared)["offers"]
    workshop_answers.answer(int(catch_up["id"]))
    assert workshop_answers.own(shared)["offers"] == [reset]
    # The numbers of offers begin again in a folder that was made again.
    (folder.path / "seats" / own.key).unlink()
    seat.take(folder.path, folder.owner_uid)
    assert not seat.read_choices().answers


def test_quiz_questions_do_not_count_as_passed_exercises(shared: Sharing, clock: Clock):
    for name in ("before.1", "before.2", "ring.1"):
        progress.note(name, passed=True)
    pass_time(shared, clock, 3)
    assert workshop_answers.own(shared)["shared"]["passed"] == 1


def test_a_failed_step_is_reported_and_retried(
    shared: Sharing, folder: Folder, clock: Clock, said: list[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    def broken(reader: object) -> None:
        raise ValueError("odd")

    with monkeypatch.context() as patch:
        patch.setattr(sharing.StatusReader, "read", broken)
        pass_time(shared, clock, 10)
    assert said == ["workshop: odd"]
    progress.begin(1)
    pass_time(shared, clock, 3)
    assert folder.seats()[0].status.lesson == 1 and shared.trouble == ""


def test_news_that_could_not_be_processed_are_retried(
    shared: Sharing, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    def broken(folder: Folder) -> None:
        raise UsageError("no plan for now")

    open_folder(plan(folder.path, name="Second day"))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "plan", broken)
        shared.look()
    assert shared.trouble == "no plan for now"
    shared.look()
    assert shared.plan is not None and shared.plan.name == "Second day"


def test_news_are_read_only_once(shared: Sharing, folder: Folder):
    folder.say("hello")
    shared.look()
    shared.look()
    assert [each.kind for each in shared.news] == ["open", "message"]


def test_the_news_of_a_recreated_folder_are_read_from_the_beginning(
    shared: Sharing, folder: Folder, clock: Clock
):
    workshop_answers.answer(7)
    folder.say("x" * 500)
    pass_time(shared, clock, 3)
    assert seat.read_choices().answers
    for text in ("y", "z" * 900):  # shorter than what was heard, and longer
        shutil.rmtree(folder.path)
        opened(folder.path, name="Second try")
        folder.say(text)
        pass_time(shared, clock, 3)
        assert [each.text for each in shared.news] == ["", text]
        assert len(folder.seats()) == 1
    assert shared.plan is not None and shared.plan.name == "Second try"
    assert not seat.read_choices().answers
    folder.close()
    shared.look()
    assert shared.ends_at > 0


def test_a_folder_that_another_account_made_again_is_not_trusted(
    shared: Sharing, folder: Folder, clock: Clock, said: list[str]
):
    folder.say("hello")
    pass_time(shared, clock, 3)
    before = list(shared.news)
    shutil.rmtree(folder.path)
    opened(folder.path, name="Another's")
    folder.offer_cell("import evil")
    folder.close()
    assert shared._seat is not None
    shared._seat.owner += 1  # as if another account, and not this one, had made it
    pass_time(shared, clock, 60)
    assert shared.news == before and not shared.ends_at
    assert shared.plan is not None and shared.plan.name == "Test workshop"
    assert len(said) == 1 and "not to the teacher whose workshop you joined" in said[0]
    assert workshop_answers.own(shared)["trouble"] == shared.trouble != ""
    with pytest.raises(UsageError, match="belongs to"):
        shared._seat.write_choices_to_seat()
    shared.end()
    assert folder.seats() == []


def test_news_of_another_account_are_ignored_even_after_the_owner_check(
    shared: Sharing, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    before = list(shared.news)
    monkeypatch.setattr(seat.OwnSeat, "demand_teacher", lambda self: None)
    assert shared.folder.known_owner == folder.owner_uid
    shared.folder.known_owner += 1
    folder.offer_cell("import evil")
    folder.close()
    shared.look()
    assert shared.news == before and not shared.ends_at
    with pytest.raises(UsageError, match="do not use this workshop"):
        shared.folder.plan()


def test_an_exceeded_quota_is_reported_once_and_the_write_retried(
    shared: Sharing, folder: Folder, clock: Clock, said: list[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    whole = owned_files.write_shared

    def full(path: Path, text: str) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))

    monkeypatch.setattr(seat, "write_shared", full)
    progress.begin(1)
    pass_time(shared, clock, 120)
    assert len(said) == 1
    assert "your quota is used up" in said[0]
    # Others may read the log, but must not learn the seat's name.
    assert shared.trouble and seat.read_choices().seat not in said[0]
    monkeypatch.setattr(seat, "write_shared", whole)
    pass_time(shared, clock, 30)
    assert shared.trouble == ""
    assert folder.seats()[0].status.lesson == 1


def test_hand_and_sharing_still_take_effect_with_a_full_home(
    shared: Sharing, folder: Folder, clock: Clock, said: list[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    def full(*about: object, **more: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "workshop.json")

    progress.begin(2)
    with monkeypatch.context() as patch:
        patch.setattr(seat, "write_atomically", full)
        shared.hand(True)
        shared.share(False)
        assert "your quota is used up" in shared.trouble
        pass_time(shared, clock, 30)
        [found] = folder.seats()
        assert found.status.hand and not found.status.shares and found.status.lesson is None
        assert workshop_answers.own(shared)["shared"]["shares"] is False
        assert len(said) == 1
        shared.end()
        assert [(each.status.state, each.status.hand) for each in folder.seats()] == [
            ("ended", False)
        ]
    assert seat.read_choices().shares
    pass_time(shared, clock, 45)
    assert not seat.read_choices().shares and shared.trouble == ""


def test_a_full_home_does_not_prevent_a_seat(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    def full(*about, **more) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "workshop.json")

    with monkeypatch.context() as patch:
        patch.setattr(seat, "write_atomically", full)
        shared = Sharing(folder.path)
        shared.look()
    (own,) = folder.seats()
    shared.share(False)
    # The home has room again, and now it remembers all of the seat, for the next server, too.
    assert seat.mine().name == own.key
    assert not seat.take(folder.path, folder.owner_uid).choices().shares
    (own,) = folder.seats()
    assert not own.status.shares


def test_a_home_that_is_away_for_a_while_does_not_give_up_the_seat(
    shared: Sharing, clock: Clock, folder: Folder, home: Path
):
    home.rename(home.with_name("away"))
    pass_time(shared, clock, 30)
    assert shared.has_seat and "no such folder now" in shared.trouble
    home.with_name("away").rename(home)
    pass_time(shared, clock, 30)
    assert shared.has_seat and shared.trouble == "" and len(folder.seats()) == 1


def test_failed_copies_of_notebooks_do_not_prevent_taking_a_seat(
    folder: Folder, clock: Clock, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    def full(*about: object, **more: object) -> None:
        raise UsageError("cannot copy the course")

    shared = Sharing(folder.path, tell=said.append)
    with monkeypatch.context() as patch:
        patch.setattr(sharing, "copy_to", full)
        pass_time(shared, clock, 60)
        assert len(folder.seats()) == 1
        assert shared.trouble == "cannot copy the course" and len(said) == 1
        folder.say("hello")
        pass_time(shared, clock, 1)
        assert shared.news[-1].text == "hello"
    pass_time(shared, clock, 30)
    assert shared.trouble == "" and (Path.home() / "Test-workshop" / "20_capstone.ipynb").exists()


def test_a_removed_workshop_folder_is_reported_and_ends_nothing(
    shared: Sharing, folder: Folder, clock: Clock, said: list[str]
):
    folder.path.rename(folder.path.with_name("gone"))
    pass_time(shared, clock, 60)
    assert len(said) == 1 and "may" in said[0]
    assert not shared.is_over
    folder.path.with_name("gone").rename(folder.path)
    pass_time(shared, clock, 30)
    assert shared.trouble == ""


def test_a_learner_who_is_not_listed_is_refused(folder: Folder, said: list[str], clock):
    open_folder(plan(folder.path, learners=("ada",)))
    me = owned_files.account(folder.owner_uid)
    with pytest.raises(UsageError) as error:
        sharing.demand_place(plan(folder.path, learners=("ada",)), "eve", Unowned(folder.path))
    assert f"eve is not in the list of learners of Test workshop: ask {me}" in str(error.value)


class Unowned(Folder):
    """A workshop folder that belongs to another user."""

    def is_teacher(self) -> bool:
        return False


def test_the_end_is_announced_and_can_be_withdrawn(shared: Sharing, folder: Folder, clock: Clock):
    until = folder.close()
    shared.look()
    assert shared.ends_at == until and not shared.is_over
    open_folder(plan(folder.path))
    shared.look()
    assert shared.ends_at == 0
    folder.close()
    shared.look()
    clock.now += 61
    assert shared.is_over


def test_a_withdrawn_end_stays_withdrawn_if_the_new_plan_is_unreadable(
    shared: Sharing, folder: Folder, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    def broken(folder: Folder) -> None:
        raise UsageError("no plan for now")

    clock.now += 3600  # the first plan is over by then, too
    folder._tell(kind="end", until=time.time() - 1)
    open_folder(plan(folder.path, name="Second day", ends=None))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "plan", broken)
        for _ in range(2):
            shared.look()
            assert shared.trouble == "no plan for now" and not shared.ends_at
    shared.look()
    assert shared.plan is not None and shared.plan.name == "Second day" and not shared.ends_at


def test_the_end_in_the_plan_is_announced_shortly_before(folder: Folder, clock: Clock):
    soon = datetime.now(timezone.utc) + timedelta(seconds=90)
    open_folder(plan(folder.path, ends=soon))
    shared = Sharing(folder.path)
    shared.look()
    assert shared.ends_at == 0
    clock.now += 40
    shared.look()
    assert shared.ends_at == pytest.approx(soon.timestamp())


def test_a_server_started_after_the_end_stops_at_once(folder: Folder, said: list[str], monkeypatch):
    folder.close()
    late = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: late)
    stopped = []
    shared = Sharing(folder.path, stop=lambda: stopped.append(True), tell=said.append)
    asyncio.run(asyncio.wait_for(shared.run(), 20))
    assert stopped == [True]
    assert "is over" in said[0]
    assert folder.seats() == []


def test_a_server_ends_with_its_workshop(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    stopped = []
    shared = Sharing(folder.path, stop=lambda: stopped.append(True))
    shared.look()
    folder._tell(kind="end", until=time.time() + 1)
    asyncio.run(asyncio.wait_for(shared.run(), 20))
    assert stopped == [True]
    assert [each.status.state for each in folder.seats()] == ["ended"]


def test_a_server_stops_even_if_its_cleanup_fails(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    stopped = []
    shared = Sharing(folder.path, stop=lambda: stopped.append(True))
    shared.look()
    folder._tell(kind="end", until=time.time() - 1)
    shared.look()
    monkeypatch.setattr(sharing.lookup, "running_clusters", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(shared.run(), 20))
    assert stopped == [True]


def test_the_end_stops_the_workshops_own_clusters_only(
    shared: Sharing, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    places = {"course": folder.path, "mine": f"{folder.path}/", "research": None, "old": "/other"}
    started = []
    for name, place in places.items():
        env = {sharing.WORKSHOP_VARIABLE: str(place)} if place else {}
        process = subprocess.Popen(["sleep", "60"], env={**os.environ, **env})
        started.append(process)
        paths = ClusterPaths(name)
        paths.make(2)
        began = process_tree.began(process.pid) or 0
        paths.write(
            ClusterInfo(name, 2, "running", supervisor=process.pid, began=began,
                        created=time.time() + 9)
        )  # fmt: skip
    stopped: list[str] = []
    monkeypatch.setattr(sharing.actions, "stop", stopped.append)
    try:
        shared.end()
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert sorted(stopped) == ["course", "mine"]


def test_the_ranks_and_lessons_of_a_seat_come_from_the_plan(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    assert (sharing.seat_ranks(), sharing.seat_lessons()) == (0, [])
    monkeypatch.setenv("RANKROOM_WORKSHOP", str(folder.path))
    assert (sharing.seat_ranks(), sharing.seat_lessons()) == (2, [1, 2])
    monkeypatch.setenv("RANKROOM_WORKSHOP", "/none")
    assert (sharing.seat_ranks(), sharing.seat_lessons()) == (0, [])


def test_a_temporarily_unreadable_file_does_not_give_up_the_seat(
    shared: Sharing, clock: Clock, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    shared.share(False)
    kept = seat.read_choices()
    clock.now += 30

    def refuse(path: Path, *args: object) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        shared.look()
        with pytest.raises(OSError):
            shared.hand(True)
    assert "Stale file handle" in shared.trouble
    assert seat.read_choices() == kept and not kept.shares
    clock.now += 30
    shared.hand(True)
    assert shared.trouble == "" and folder.seats()[0].status.hand
