"""Learners who try to access what is not theirs, as real other users of this machine."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import another_user
from rankroom.errors import RankroomError
from rankroom.workshop import owned_files, seat
from rankroom.workshop.seat import OwnSeat, SeatStatus
from rankroom.workshop.sharing import Sharing
from rankroom.workshop.workshop_folder import Folder
from workshops import opened, reachable

ADA, BOB = 54321, 54322  # unused uids


@pytest.fixture
def base() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("other users are needed")
    with reachable() as folder:
        for uid in (ADA, BOB):
            (folder / str(uid)).mkdir(mode=0o700)
            os.chown(folder / str(uid), uid, uid)
        yield folder


@pytest.fixture
def folder(base: Path, home: Path) -> Folder:
    return opened(base / "may")


@pytest.fixture
def learner(base: Path) -> Callable:
    """Return a function that acts as a learner with a home of their own."""

    def act(uid: int, what: Callable):
        def there():
            os.environ["RANKROOM_HOME"] = str(base / str(uid) / "data")
            return what()

        return another_user.call(there, uid)

    return act


def take(folder: Folder, **status) -> str:
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="idle", **status))
    return own.name


def denied(act: Callable) -> bool:
    """Return whether the system or Rankroom refuses this action."""
    try:
        act()
    except (PermissionError, RankroomError):
        return True
    return False


def test_the_teacher_sees_the_seats_of_all_learners(folder: Folder, learner: Callable):
    learner(ADA, partial(take, folder, lesson=1))
    learner(BOB, partial(take, folder, lesson=2))
    assert [(each.uid, each.status.lesson) for each in folder.seats()] == [(ADA, 1), (BOB, 2)]


def test_a_seat_is_the_same_when_it_is_taken_again(folder: Folder, learner: Callable):
    assert learner(ADA, partial(take, folder)) == learner(ADA, partial(take, folder))
    assert len(folder.seats()) == 1


def test_learners_cannot_list_the_seats(folder: Folder, learner: Callable):
    learner(ADA, partial(take, folder))
    seats = folder.path / "seats"
    assert learner(BOB, lambda: denied(lambda: list(seats.iterdir())))
    assert learner(BOB, lambda: denied(lambda: list(os.scandir(seats))))
    assert learner(BOB, lambda: denied(folder.seats))  # with a message, before it is tried


def test_learners_do_not_read_one_anothers_notebooks(folder: Folder, learner: Callable, base: Path):
    (base / str(ADA)).chmod(0o755)  # as homes often are
    copies = base / str(ADA) / folder.plan().copies

    def look() -> None:
        os.environ["HOME"] = str(copies.parent)
        Sharing(folder.path).look()

    learner(ADA, look)
    assert learner(ADA, lambda: (copies / "02_collectives.ipynb").read_text())
    assert learner(BOB, lambda: denied(lambda: list(copies.iterdir())))
    assert learner(BOB, lambda: denied((copies / "02_collectives.ipynb").read_text))


def test_other_learners_cannot_find_the_name_of_a_seat(
    folder: Folder, learner: Callable, base: Path
):
    name = learner(ADA, partial(take, folder))
    folder.request(str(ADA), "reset")
    assert len(name) == len(str(ADA)) + 1 + 32

    def found() -> list[str]:
        texts = []
        for top in (folder.path, base / str(ADA)):
            for where, _, files in os.walk(top):
                for each in files:
                    texts += [str(Path(where, each)), Path(where, each).read_text()]
        return texts

    assert not any(name in each for each in learner(BOB, found))


@pytest.mark.parametrize("file", ["workshop.toml", "teacher/news.jsonl"])
def test_learners_cannot_change_the_teachers_files(folder: Folder, learner: Callable, file: str):
    path = folder.path / file
    before = path.read_text()
    acts = [
        lambda: path.open("a"), lambda: path.open("w"), path.unlink, lambda: path.chmod(0o666),
        lambda: path.rename(path.with_name("other")),
        lambda: (path.parent / "planted").write_text("x"), lambda: folder.say("I am the teacher"),
        folder.close, lambda: folder.request(str(ADA), "reset"), lambda: folder.show_run(None),
    ]  # fmt: skip
    for act in acts:
        assert learner(BOB, partial(denied, act))
    assert path.read_text() == before


def test_a_learner_cannot_remove_or_replace_anothers_seat_even_by_its_name(
    folder: Folder, learner: Callable
):
    path = folder.path / "seats" / learner(ADA, partial(take, folder, lesson=1))
    for act in (
        path.unlink, lambda: path.rename(path.with_name("x")), lambda: path.open("w"),
        lambda: path.chmod(0o666), lambda: owned_files.write_shared(path, "{}"),
    ):  # fmt: skip
        assert learner(BOB, partial(denied, act))
    assert [each.status.lesson for each in folder.seats()] == [1]


def test_a_forged_seat_is_attributed_to_its_forger(folder: Folder, learner: Callable):
    learner(ADA, partial(take, folder, lesson=1))

    def forge() -> None:
        path = folder.path / "seats" / f"{ADA}-{'0' * 32}"
        owned_files.write_shared(path, '{"version": 1, "user": "54321", "lesson": 9}')

    learner(BOB, forge)
    assert [(each.uid, each.status.lesson) for each in folder.seats()] == [(ADA, 1), (BOB, 9)]


def test_a_file_moved_into_the_seats_neither_hides_nor_forges_a_seat(
    folder: Folder, learner: Callable, base: Path
):
    learner(ADA, partial(take, folder, lesson=1))
    drop = base / "drop"
    drop.mkdir()
    drop.chmod(0o777)  # such as one where a group exchanges files

    def leave() -> None:
        (drop / "notes").write_text("x")
        (drop / "board").write_text("{}")
        (drop / "board").chmod(0o666)

    def move() -> None:
        (drop / "board").write_text('{"version": 1, "lesson": 9}')
        for name in ("notes", "board"):
            (drop / name).rename(folder.path / "seats" / f"{ADA}-{name}")

    learner(ADA, leave)
    learner(BOB, move)
    assert [(each.uid, each.status.lesson) for each in folder.seats()] == [(ADA, 1)]


def test_links_and_pipes_planted_by_a_learner_are_not_read_as_seats(
    folder: Folder, learner: Callable, base: Path
):
    private = base / "private.json"
    private.write_text('{"version": 1, "lesson": 7}')
    private.chmod(0o600)

    def plant() -> None:
        seats = folder.path / "seats"
        (seats / "a").symlink_to(private)
        os.mkfifo(seats / "b")
        (seats / "c").symlink_to("/dev/zero")
        with contextlib.suppress(PermissionError):  # a system may forbid such links
            os.link(private, seats / "d")

    learner(BOB, plant)
    assert folder.seats() == []


def test_the_teacher_can_remove_the_seats_of_learners(folder: Folder, learner: Callable):
    """The owner of a sticky folder may remove all files in it, so teachers do not need root."""
    teacher = 54300
    os.chown(folder.path, teacher, teacher)
    for each in (folder.path / "seats", folder.path / "teacher", *folder.path.rglob("*.*")):
        os.chown(each, teacher, teacher)
    (folder.path / "seats").chmod(0o1733)
    name = learner(ADA, partial(take, folder))
    another_user.call((folder.path / "seats" / name).unlink, teacher)
    assert not list((folder.path / "seats").iterdir())


def test_a_workshop_folder_whose_owner_has_changed_is_refused(folder: Folder, learner: Callable):
    learner(ADA, partial(take, folder))
    os.chown(folder.path, BOB, BOB)
    with pytest.raises(AssertionError, match=r"belongs to 54322 now, and not to the teacher"):
        learner(ADA, partial(take, folder))


def test_a_plan_of_another_account_is_refused(folder: Folder, learner: Callable):
    os.chown(folder.path / "workshop.toml", BOB, BOB)
    with pytest.raises(AssertionError, match=r"workshop\.toml belongs to 54322, but the folder to"):
        learner(ADA, lambda: folder.plan().name)
    os.chown(folder.path / "teacher" / "news.jsonl", BOB, BOB)
    assert learner(ADA, lambda: len(folder.news())) == 0


def test_the_seat_of_a_learner_who_leaves_is_removed(folder: Folder, learner: Callable):
    learner(ADA, partial(take, folder))

    def leave() -> None:
        choices = seat.read_choices()
        OwnSeat(folder.path, choices.seat, choices.owner).leave()

    learner(ADA, leave)
    assert folder.seats() == []
    assert learner(ADA, lambda: seat.own_file().exists()) is False
