"""A workshop's folder: its modes under any umask, which of its files are trusted, and the
teacher's news."""

import errno
import os
import shlex
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import another_user
from rankroom.errors import RecordError, UnreadableRecordError, UsageError
from rankroom.record.model import Owner, RunInfo
from rankroom.record.store import Store
from rankroom.workshop import owned_files, seat, workshop_answers, workshop_folder
from rankroom.workshop.seat import SeatStatus
from rankroom.workshop.workshop_folder import Folder, open_folder
from record_makers import log, start_record
from workshops import opened, plan, reachable


@pytest.fixture
def base(home: Path) -> Iterator[Path]:
    with reachable() as folder:
        yield folder


@pytest.fixture
def folder(base: Path) -> Folder:
    return opened(base / "may")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_are_the_same_under_any_umask(base: Path, umask: int):
    before = os.umask(umask)
    try:
        folder = opened(base / "may")
        folder.say("hello")
        own = seat.take(folder.path, folder.owner_uid)
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o755
    assert mode(folder.path / "workshop.toml") == 0o644
    assert mode(folder.path / "teacher") == 0o755
    assert mode(folder.path / "teacher" / "news.jsonl") == 0o644
    assert mode(folder.path / "seats") == 0o1733
    assert mode(own.path) == 0o644
    assert mode(seat.own_file()) == 0o600
    assert mode(seat.own_file().parent) == 0o700


def test_a_folder_below_one_that_learners_cannot_enter_is_refused(base: Path):
    (base / "closed").mkdir(mode=0o700)
    with pytest.raises(UsageError, match=r"learners cannot enter .*/closed has the mode 0700"):
        opened(base / "closed" / "may")
    assert not (base / "closed" / "may").exists()


def test_a_folder_that_all_could_replace_is_refused(base: Path):
    (base / "open").mkdir()
    (base / "open").chmod(0o777)
    with pytest.raises(UsageError, match="anybody could put another folder in the place"):
        opened(base / "open" / "may")
    (base / "open").chmod(0o1777)  # as for /tmp
    opened(base / "open" / "may")


def test_a_folder_that_holds_other_files_is_left_as_it_is(base: Path):
    (base / "course").mkdir(mode=0o700)
    (base / "course" / "exam.tex").write_text("secret")
    with pytest.raises(
        UsageError,
        match=r"already holds files, such as exam\.tex, which everybody could then reach",
    ):
        opened(base / "course")
    assert mode(base / "course") == 0o700
    (base / "course" / "exam.tex").rename(base / "exam.tex")
    folder = opened(base / "course")
    (base / "exam.tex").rename(folder.path / "exam.tex")  # added on purpose
    open_folder(plan(folder.path))


def test_a_private_folder_that_holds_the_plan_is_left_as_it_is(base: Path):
    (base / "mine").mkdir(mode=0o700)
    (base / "mine" / "workshop.toml").write_text("# my plan")
    (base / "mine" / "grades.csv").write_text("secret")
    with pytest.raises(UsageError, match="already holds files"):
        opened(base / "mine")
    assert mode(base / "mine") == 0o700
    assert (base / "mine" / "workshop.toml").read_text() == "# my plan"


def test_a_seat_replaced_on_another_host_while_it_is_read_is_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    seat.take(folder.path, folder.owner_uid)
    stale = iter([True])
    whole = os.pread

    def pread(*about: int) -> bytes:
        if next(stale, False):
            raise OSError(errno.ESTALE, "Stale file handle")
        return whole(*about)

    monkeypatch.setattr(os, "pread", pread)
    assert len(folder.seats()) == 1


def test_a_file_system_without_modes_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "chmod", lambda *about, **more: None)
    with pytest.raises(UsageError, match=r"gives .* the mode 0700, not 0755"):
        opened(base / "may")


def test_a_missing_folder_or_workshop_is_reported(base: Path):
    with pytest.raises(UsageError, match=r"No such file or directory\. Make .*/none first"):
        opened(base / "none" / "may")
    with pytest.raises(UsageError, match="there is no workshop in"):
        Folder(base / "none").plan()
    with pytest.raises(UsageError, match=r"it has no workshop\.toml"):
        Folder(base).plan()


def test_opening_again_takes_the_new_plan_and_keeps_seats(folder: Folder):
    own = seat.take(folder.path, folder.owner_uid)
    folder.close()
    open_folder(plan(folder.path, name="Second day"))
    assert folder.plan().name == "Second day"
    assert [each.key for each in folder.seats()] == [own.name]
    assert not folder.is_over()


def test_a_closed_workshop_is_over_only_at_its_announced_end(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    until = folder.close()
    assert not folder.is_over()
    monkeypatch.setattr(workshop_folder.time, "time", lambda: until)
    assert folder.is_over()


# -- trusted files


def test_planted_files_are_not_seats(folder: Folder, tmp_path: Path):
    own = seat.take(folder.path, folder.owner_uid)
    seats = folder.path / "seats"
    secret = tmp_path / "secret.json"
    secret.write_text('{"version": 1, "user": "secret"}')
    (seats / "bob-1").symlink_to(secret)
    os.mkfifo(seats / "cay-1")
    (seats / "dan-1").mkdir()
    (seats / ".eva-1").write_text(secret.read_text())
    assert [each.key for each in folder.seats()] == [own.name]
    # Nor is our own seat file once it is a link.
    own.path.unlink()
    own.path.symlink_to(secret)
    assert folder.seats() == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"version": "1"}', "[" * 100_000, "x" * 70_000, "\x00", "{"]
)
def test_a_file_that_is_not_a_valid_seat_is_ignored(folder: Folder, text: str):
    (folder.path / "seats" / "bob-1").write_text(text)
    assert folder.seats() == []


def test_a_hard_link_is_not_accepted_as_a_seat(folder: Folder, base: Path):
    mine = base / "of-mine.json"
    mine.write_text('{"version": 1}')
    os.link(mine, folder.path / "seats" / "bob-1")
    assert folder.seats() == []


def test_only_the_newest_seat_of_an_account_counts(folder: Folder):
    for number, at in ((1, 100), (2, 300), (3, 200)):
        file = folder.path / "seats" / f"bob-{number}"
        file.write_text('{"version": 1}')
        os.utime(file, (at, at))
    assert [each.key for each in folder.seats()] == ["bob-2"]


@pytest.mark.parametrize(("text", "mode"), [("notes", 0o644), ('{"version": 1}', 0o666)])
def test_planted_files_do_not_hide_a_seat(folder: Folder, text: str, mode: int):
    own = seat.take(folder.path, folder.owner_uid)
    for number in range(workshop_folder.MOST_TRIED - 1):
        file = folder.path / "seats" / f"bob-{number}"
        file.write_text(text)
        file.chmod(mode)
        later = time.time() + 60
        os.utime(file, (later, later))
    assert [each.key for each in folder.seats()] == [own.name]


def test_too_many_files_cause_a_warning(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workshop_folder, "MOST_ENTRIES", 5)
    assert folder.warnings() == []
    for number in range(9):
        (folder.path / "seats" / f"bob-{number}").write_text('{"version": 1}')
    [said] = folder.warnings()
    assert "holds too many files" in said
    assert len(folder.seats()) == 1


def test_all_kinds_of_entries_count_for_the_limit(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workshop_folder, "MOST_ENTRIES", 5)
    seats = folder.path / "seats"
    for number in range(2):
        (seats / f"link-{number}").symlink_to("/dev/null")
        (seats / f".hidden-{number}").write_text("")
    assert folder.warnings() == []
    (seats / "folder").mkdir()
    [said] = folder.warnings()
    assert "has made 5 of them" in said


def test_a_name_of_a_seat_may_be_any_bytes(folder: Folder):
    name = os.fsdecode(b"eve-\xff")
    (folder.path / "seats" / name).write_text('{"version": 1, "lesson": 1}')
    [found] = folder.seats()
    folder.request(found.user, "reset")
    assert folder.news()[-1].is_for(found.key)
    [tile] = workshop_answers.overview(folder)["tiles"]
    assert tile["offered"]["what"] == "reset"


def test_the_join_command_quotes_the_folder(base: Path):
    folder = opened(base / "Ada's course")
    join = workshop_answers.overview(folder)["join"]
    assert shlex.split(join) == ["rankroom", "workshop", "join", str(folder.path)]


def test_invalid_values_in_a_seat_are_sanitized():
    found = SeatStatus.from_json(
        {
            "version": 1, "user": "a\x1b[2Jb", "at": "now", "state": "<b>", "why": "x" * 9999,
            "lesson": True, "hand": 1, "exercise": {"name": ["x"], "tries": -5, "at": 1e99},
            "progress": {"tries": {"a\nb": "7"}, "passed": 5}, "ranks": {"alive": float("nan")},
            "run": [], "ends_at": None, "shares": "no", "more": {},
        }
    )  # fmt: skip
    assert found.user == "a [2Jb"
    assert (found.at, found.state, found.lesson, found.hand) == (0.0, "idle", None, False)
    assert len(found.why) == 300
    assert found.exercise == {"name": "", "passed": False, "tries": 0, "at": 0.0}
    assert found.progress == {"tries": {"a b": 0}, "passed": {}}
    assert found.ranks == {"alive": 0, "of": 0}
    assert found.shares


def test_a_seat_that_has_not_changed_is_read_but_not_parsed_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="running", why="first"))
    parsed: list[object] = []
    whole = SeatStatus.from_json
    monkeypatch.setattr(SeatStatus, "from_json", lambda data: parsed.append(data) or whole(data))
    assert [each.status.why for each in folder.seats() + folder.seats()] == ["first", "first"]
    assert len(parsed) <= 1
    own.write(SeatStatus(state="failed", why="second"))
    assert [(each.status.state, each.status.why) for each in folder.seats()] == [
        ("failed", "second")
    ]


def test_an_account_that_could_not_be_looked_up_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    uid, names = 2_000_123_456, iter([KeyError(), "ada"])

    def look_up(number: int) -> SimpleNamespace:
        assert number == uid
        if isinstance(name := next(names), KeyError):  # raises StopIteration if asked once more
            raise name
        return SimpleNamespace(pw_name=name)

    monkeypatch.setattr(owned_files.pwd, "getpwuid", look_up)
    assert [owned_files.account(uid) for _ in range(3)] == [str(uid), "ada", "ada"]


def test_the_seat_of_a_learner_who_shares_nothing_reveals_nothing():
    told = SeatStatus(user="ada", shares=False, lesson=3, why="secret", job="7", host="c1")
    shy = {"user", "at", "shares", "hand", "hand_since", "version"}
    assert set(told.to_json()) == shy
    # The end of the seat's JupyterLab says nothing about the learner.
    ended = replace(told, state="ended").to_json()
    assert set(ended) == {*shy, "state"} and ended["state"] == "ended"


# -- the teacher's news


def test_news_come_once_and_in_order(folder: Folder):
    folder.say("one")
    folder.offer_cell("print(1)", "try this")
    folder.timer(5, "ring.1")
    told = folder.news()
    assert [each.kind for each in told] == ["open", "message", "cell", "timer"]
    assert told[2].text == "print(1)" and told[2].title == "try this"
    assert told[3].until - told[3].at == pytest.approx(300, abs=1)
    folder.say("zwei: ü ✓")
    assert [each.text for each in folder.news(told[-1].id)] == ["zwei: ü ✓"]
    assert folder.news(folder.news()[-1].id) == []


def test_an_incomplete_line_of_news_is_read_once_it_is_complete(folder: Folder):
    news = folder.path / "teacher" / "news.jsonl"
    folder.say("one")
    whole = news.read_bytes()
    news.write_bytes(whole[:-5])
    before = folder.news()
    assert [each.kind for each in before] == ["open"]
    news.write_bytes(whole)
    assert [each.text for each in folder.news(before[-1].id)] == ["one"]


def test_the_news_after_a_torn_line_are_read(folder: Folder):
    news = folder.path / "teacher" / "news.jsonl"
    folder.say("one")
    news.write_bytes(news.read_bytes()[:-5])
    folder.say("two")
    assert [each.text for each in folder.news()] == ["", "two"]


def test_a_partly_written_message_is_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    whole = os.write

    def partly(descriptor: int, line: bytes) -> int:
        return whole(descriptor, line[:10])

    with monkeypatch.context() as patch:
        patch.setattr(workshop_folder.os, "write", partly)
        with pytest.raises(UsageError, match=r"cannot write to the workshop in .*: No space left"):
            folder.say("one")
    folder.say("two")
    assert [each.text for each in folder.news()] == ["", "two"]


def test_lines_that_are_no_news_are_passed_over(folder: Folder):
    with (folder.path / "teacher" / "news.jsonl").open("a") as file:
        for line in ("{", "[]", '{"kind": "rm"}', '{"kind": "message"}', "null", "[" * 9999):
            file.write(line + "\n")
    folder.say("one")
    assert [each.kind for each in folder.news()] == ["open", "message"]


def test_an_offer_is_for_one_seat_and_tells_others_nothing(folder: Folder):
    own = seat.take(folder.path, folder.owner_uid)
    [learner] = folder.seats()
    folder.request(learner.user, "catch up")
    news = folder.news()[-1]
    assert news.is_for(own.name)
    assert not news.is_for("bob-1")
    written = (folder.path / "teacher" / "news.jsonl").read_text()
    assert learner.user not in written and own.name not in written
    with pytest.raises(UsageError, match="nobody has no seat; learners who have one: "):
        folder.request("nobody", "reset")


def test_too_long_a_text_is_refused(folder: Folder):
    with pytest.raises(UsageError, match="20001 characters; the limit is 20000"):
        folder.say("x" * 20_001)


def test_a_full_news_file_takes_only_the_end(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workshop_folder, "MOST_NEWS", workshop_folder.LAST_NEWS + 300)
    with pytest.raises(UsageError, match=r"the list of messages in .* is full"):
        for _ in range(9):
            folder.say("x" * 50)
    assert [each.kind for each in folder.news()][:2] == ["open", "message"]
    folder.close()  # for which there is always room
    assert folder.news()[-1].kind == "end"


# -- shown runs


def record(home: Path, run_id: str = "20260514-120000-000001") -> tuple[Store, str]:
    store = Store(home)
    run = RunInfo(run_id, "mine", 2, 1_000_000, title="train()")
    writer = store.create(run, "train()")
    writer.append(b'{"kind":"mark","rank":0,"seq":0,"t":1,"name":"one"}\n')
    run.state, run.end = "done", 2_000_000
    writer.finish(run)
    return store, run_id


def test_a_run_is_shown_whole_and_followed(folder: Folder, home: Path):
    store, run_id = record(home)
    folder.show_run(store.paths(run_id))
    shown = folder.shown()
    assert shown.load(run_id).title == "train()"
    assert shown.source(run_id) == "train()"
    assert [mode(each) for each in shown.paths(run_id).folder.iterdir()] == [0o644] * 3
    with store.paths(run_id).events.open("ab") as file:
        file.write(b'{"kind":"mark","rank":1,"seq":0,"t":2,"name":"two"}\n')
    folder.show_run(store.paths(run_id))
    assert shown.read(run_id).data == store.read(run_id).data
    assert [each.run for each in folder.news() if each.kind == "show"] == [run_id]  # once
    folder.show_run(None)
    assert [each.run for each in folder.news() if each.kind == "show"] == [run_id, ""]


def test_unreadable_news_do_not_mean_that_a_run_is_no_longer_shown(folder: Folder, home: Path):
    store, run_id = record(home)
    folder.show_run(store.paths(run_id))
    news = folder.path / "teacher" / "news.jsonl"
    news.rename(news.with_name("away"))
    with pytest.raises(UnreadableRecordError, match="cannot be read now"):
        folder.follow_run(store.paths(run_id))
    news.with_name("away").rename(news)
    assert folder.follow_run(store.paths(run_id))
    folder.show_run(None)
    assert not folder.follow_run(store.paths(run_id))


def test_a_run_that_is_too_large_is_refused(
    folder: Folder, home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workshop_folder, "MOST_SHOWN", 10)
    store, run_id = record(home)
    with pytest.raises(RecordError, match="too large to be shown"):
        folder.show_run(store.paths(run_id))
    assert not folder.shown().paths(run_id).folder.exists()


def test_concurrent_copies_of_a_shown_run_do_not_duplicate_events(
    folder: Folder, home: Path, monkeypatch: pytest.MonkeyPatch
):
    store, run_id = record(home)
    paths, copy = store.paths(run_id), folder.shown().paths(run_id)
    folder.show_run(paths)
    with paths.events.open("ab") as file:
        file.write(b'{"kind":"mark","rank":1,"seq":0,"t":2,"name":"two"}\n')
    whole = os.fchmod

    def meanwhile(descriptor: int, mode: int) -> None:
        monkeypatch.setattr(workshop_folder.os, "fchmod", whole)
        workshop_folder._copy_record(paths, copy)
        whole(descriptor, mode)

    monkeypatch.setattr(workshop_folder.os, "fchmod", meanwhile)
    workshop_folder._copy_record(paths, copy)
    assert copy.events.read_bytes() == paths.events.read_bytes()


def test_a_shown_run_that_grows_too_large_keeps_its_beginning_and_state(
    folder: Folder, home: Path, monkeypatch: pytest.MonkeyPatch
):
    # The teacher's ranks are on another machine.
    store, run, writer = start_record(home, owner=Owner("another-host", 1))
    paths, shown = store.paths(run.id), folder.shown()
    writer.append(log(0, "one\n"))
    folder.show_run(paths)
    monkeypatch.setattr(workshop_folder, "MOST_SHOWN", paths.events.stat().st_size + 10)
    for seq in (2, 3):
        writer.append(log(0, "more\n", seq))
        before = time.time() - 600
        os.utime(shown.paths(run.id).events, (before, before))
        assert folder.follow_run(paths)
        assert shown.read(run.id).data == log(0, "one\n")
        [note] = shown.load(run.id).notes
        assert "are left out" in note and shown.load(run.id).state == "running"
    run.state, run.end = "done", run.start + 1
    writer.finish(run)
    folder.follow_run(paths)
    assert shown.load(run.id).state == "done" and len(shown.load(run.id).notes) == 1
    assert store.load(run.id).notes == []


def test_a_shown_run_owned_by_another_account_is_not_read(folder: Folder, home: Path):
    store, run_id = record(home)
    folder.show_run(store.paths(run_id))
    learners = Folder(folder.path)
    shown = learners.shown()
    assert shown.load(run_id).state == "done"
    paths = shown.paths(run_id)
    for path in (paths.run, paths.events, paths.folder, folder.path):
        if os.geteuid() == 0:
            os.chown(path, another_user.UID, -1)
            learners.known_owner = os.geteuid()
            with pytest.raises(RecordError, match=r"is not shown: .* that .* owns"):
                shown.load(run_id)
            os.chown(path, 0, -1)
    paths.events.unlink()
    os.mkfifo(paths.events)  # reading it would block forever
    with pytest.raises(RecordError, match=r"events\.jsonl is not shown"):
        shown.read(run_id)
