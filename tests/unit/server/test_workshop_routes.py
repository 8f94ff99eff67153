"""A workshop over HTTP: requests of its teacher and a learner, on real Jupyter servers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import made_up_seats
from rankroom.record.store import Store
from rankroom.server import workshop_routes
from rankroom.workshop import workshop_answers
from rankroom.workshop.seat import Seat
from rankroom.workshop.workshop_folder import Folder, open_folder
from record_makers import gone_process, log, start_record
from served import Server, serve
from workshops import reachable

SCHEMA = json.loads(workshop_answers.SCHEMA_FILE.read_text())
root_only = pytest.mark.skipif(os.getuid() != 0, reason="other accounts' files: root makes some")


def conforms(answer: object, name: str) -> None:
    """Check that an answer matches its schema."""
    import jsonschema

    jsonschema.validate(answer, {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


def wait_for(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that other accounts may enter; pytest's own are private."""
    with reachable() as made:
        yield made


@pytest.fixture(scope="module")
def folder(place: Path) -> Folder:
    return open_folder(made_up_seats.plan(place / "open"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("teacher"), "workshop_server.py") as started:
        yield started


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory, folder: Folder) -> Iterator[Server]:
    """A server with a seat in the workshop."""
    home = tmp_path_factory.mktemp("learner")
    with serve(home, "workshop_server.py", RANKROOM_WORKSHOP=str(folder.path)) as started:
        wait_for(lambda: own(started)["shared"])
        yield started


def overview(server: Server, folder: Folder, more: str = "") -> dict:
    reply = server.get(f"rankroom/workshop?folder={folder.path}{more}")
    assert reply.status == 200, reply.body
    conforms(reply.json, "Overview")
    return reply.json


def own(server: Server) -> dict:
    answer = server.get("rankroom/workshop/own").json
    conforms(answer, "Own")
    return answer


def mine(folder: Folder) -> dict:
    """Return the content of this account's seat file."""
    [file] = [path for path in (folder.path / "seats").iterdir() if path.name[0] != "."]
    return json.loads(file.read_text())


@root_only
def test_learners_who_need_help_are_listed_first(teacher: Server, place: Path):
    folder = made_up_seats.make(place / "forty")
    seen = overview(teacher, folder)
    needs = [tile["need"] for tile in seen["tiles"]]
    assert needs[:8] == ["hand", "hand", "stuck", "stuck", "failed", "failed", "silent", "behind"]
    assert len(needs) == 40
    first = seen["tiles"][0]["shared"]
    # Of the raised hands, the one raised first comes first.
    assert first["user"] == "learner04"
    assert first["lesson_title"] == "03 Ring all-reduce"
    assert (first["exercise"]["name"], first["ranks"]) == ("ring.2", {"alive": 2, "of": 2})
    silent = next(tile for tile in seen["tiles"] if tile["need"] == "silent")
    assert 180 < silent["silent_s"] < 600
    assert seen["lesson_now"] == "03 Ring all-reduce" and seen["is_open"] and not seen["absent"]
    assert seen["results"]["exercise"] == "ring.2"
    shown = seen["results"]
    assert shown["passed"] + shown["tried"] + shown["not_tried"] + shown["silent"] == 40
    assert shown["silent"] == 1
    assert overview(teacher, folder, "&exercise=hello.1")["results"]["passed"] > 30


@root_only
def test_a_learner_who_shares_nothing_shows_no_progress_or_run(teacher: Server, place: Path):
    folder = made_up_seats.make(place / "shy")
    tiles = {tile["shared"]["user"]: tile["shared"] for tile in overview(teacher, folder)["tiles"]}
    told = tiles["learner32"]
    assert told["shares"] is False
    empty = {"exercise": None, "ranks": None, "run": None, "why": "", "host": "", "job": ""}
    assert {key: told[key] for key in empty} == empty


def test_a_workshop_without_learners_shows_the_command_to_join(teacher: Server, place: Path):
    folder = open_folder(made_up_seats.plan(place / "empty"))
    seen = overview(teacher, folder)
    assert seen["tiles"] == [] and seen["results"]["exercise"] == "hello.1"
    assert seen["join"] == f"rankroom workshop join {place}/empty"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "say which workshop"),
        ("?folder=here", "here is not an absolute path"),
        ("?folder=/nonexistent/workshop", "no workshop in /nonexistent/workshop"),
        ("?folder=/usr", "no workshop in /usr"),
    ],
)
def test_a_request_without_a_valid_workshop_is_refused(teacher: Server, query: str, says: str):
    reply = teacher.get(f"rankroom/workshop{query}")
    assert 400 <= reply.status < 500
    assert says in reply.json["message"] and "\n" not in reply.json["message"]


@root_only
def test_only_the_teacher_may_view_learners_and_send_messages(teacher: Server, place: Path):
    folder = open_folder(made_up_seats.plan(place / "another"))
    made_up_seats.main("give", str(folder.path))
    news = folder.path / "teacher" / "news.jsonl"
    before = news.read_bytes()
    reply = teacher.get(f"rankroom/workshop?folder={folder.path}")
    assert reply.status == 403
    assert "is teacher's, who alone sees its learners" in reply.json["message"]
    reply = teacher.post("rankroom/workshop/say", {"folder": str(folder.path), "text": "hello"})
    assert reply.status == 403
    assert news.read_bytes() == before


@pytest.mark.parametrize(
    ("what", "words", "says"),
    [
        ("say", {"text": " "}, "write one first"),
        ("cell", {}, "take the active cell"),
        ("timer", {"minutes": "soon"}, "give a number up to 1440"),
        ("timer", {"minutes": "-1"}, "give a number"),
        ("offer", {"user": "nobody", "what": "catch up"}, "nobody has no seat"),
        ("offer", {"user": "nobody", "what": "money"}, "the offers are 'catch up' and 'reset'"),
        ("show", {"run": "20200101-000000-abcdef"}, "no record"),
    ],
)
def test_an_invalid_request_by_the_teacher_is_refused_and_not_published(
    teacher: Server, folder: Folder, what: str, words: dict[str, str], says: str
):
    before = len(folder.news())
    reply = teacher.post(f"rankroom/workshop/{what}", {"folder": str(folder.path), **words})
    assert 400 <= reply.status < 500 and says in reply.json["message"]
    assert len(folder.news()) == before


def test_a_server_without_a_workshop_has_no_seat(teacher: Server):
    assert own(teacher)["role"] == ""
    for what, words in (("hand", {"is_up": "yes"}), ("share", {"is_on": "no"})):
        reply = teacher.post(f"rankroom/workshop/{what}", words)
        assert reply.status == 400 and "has no seat" in reply.json["message"]
    assert teacher.get("rankroom/workshop/runs").status == 404


def test_a_learner_sees_messages_and_timer(teacher: Server, learner: Server, folder: Folder):
    def tell(what: str, **words: str) -> None:
        reply = teacher.post(f"rankroom/workshop/{what}", {"folder": str(folder.path), **words})
        assert reply.status == 200, reply.body

    tell("say", text="a break of ten minutes\n<b>really</b>")
    tell("cell", source="print(rank)\n", title="who are you?")
    tell("timer", minutes="10", title="ring.2")
    wait_for(lambda: own(learner)["timer"])
    seen = own(learner)
    told = [each for each in seen["messages"] if each["kind"] != "run"]
    assert [(each["kind"], each["text"]) for each in told] == [
        ("cell", "who are you?"),
        ("text", "a break of ten minutes\n<b>really</b>"),
    ]
    assert told[0]["source"] == "print(rank)\n"
    assert seen["timer"]["title"] == "ring.2" and seen["timer"]["until"] > time.time() + 500
    assert overview(teacher, folder)["messages"] == seen["messages"]
    reply = teacher.post("rankroom/workshop/timer", {"folder": str(folder.path), "minutes": ""})
    assert (reply.status, reply.json["message"]) == (200, "no timer is shown any more")
    wait_for(lambda: own(learner)["timer"] is None)


def test_a_learner_controls_the_raised_hand_and_sharing(
    teacher: Server, learner: Server, folder: Folder
):
    assert learner.post("rankroom/workshop/hand", {"is_up": "yes"}).status == 200
    assert own(learner)["shared"]["hand_since"] > 0
    wait_for(lambda: mine(folder)["hand"])
    [tile] = overview(teacher, folder)["tiles"]
    assert tile["need"] == "hand"
    assert learner.post("rankroom/workshop/share", {"is_on": "no"}).status == 200
    wait_for(lambda: not mine(folder)["shares"])
    assert set(mine(folder)) == {"user", "at", "shares", "hand", "hand_since", "version"}
    assert own(learner)["shared"]["shares"] is False
    learner.post("rankroom/workshop/hand", {"is_up": "no"})
    learner.post("rankroom/workshop/share", {"is_on": "yes"})
    wait_for(lambda: mine(folder)["shares"] and not mine(folder)["hand"])
    assert learner.post("rankroom/workshop/hand", {"is_up": "perhaps"}).status == 400


def test_an_offer_stays_until_it_is_answered(teacher: Server, learner: Server, folder: Folder):
    [seat] = folder.seats()
    assert isinstance(seat, Seat)
    words = {"folder": str(folder.path), "user": seat.user}
    offer = {**words, "what": "catch up", "exercise": "ring.2"}
    assert teacher.post("rankroom/workshop/offer", offer).status == 200
    wait_for(lambda: own(learner)["offers"])
    [seen] = own(learner)["offers"]
    assert (seen["what"], seen["exercise"]) == ("catch up", "ring.2")
    assert seen["lesson"]["file"] == "03_ring_allreduce.ipynb"
    assert overview(teacher, folder)["tiles"][0]["offered"]["what"] == "catch up"
    assert learner.post("rankroom/workshop/answer", {"offer": "soon"}).status == 400
    assert learner.post("rankroom/workshop/answer", {"offer": seen["id"]}).status == 200
    assert own(learner)["offers"] == []
    assert teacher.post("rankroom/workshop/offer", {**words, "what": "reset"}).status == 200
    wait_for(lambda: own(learner)["offers"])
    assert own(learner)["offers"][0]["what"] == "reset"


def test_a_reset_keeps_the_learners_notebook(learner: Server):
    root = learner.home.parent  # the server's root folder
    mine = root / "work" / "01_hello_ranks.ipynb"
    mine.parent.mkdir()
    mine.write_text("my own")
    reply = learner.post("rankroom/workshop/reset", {"notebook": "work/01_hello_ranks.ipynb"})
    assert reply.status == 200, reply.body
    [kept] = [path for path in mine.parent.iterdir() if "before reset" in path.name]
    assert kept.name in reply.json["message"] and kept.read_text() == "my own"
    cells = json.loads(mine.read_text())["cells"]
    assert "%course 1" in "".join("".join(cell["source"]) for cell in cells)
    other = root / "work" / "thesis.ipynb"
    other.write_text("my own")
    reply = learner.post("rankroom/workshop/reset", {"notebook": "work/thesis.ipynb"})
    assert reply.status == 400 and "is not a lesson of the course" in reply.json["message"]
    assert other.read_text() == "my own"
    outside = root.parent / "01_hello_ranks.ipynb"
    for way in ("../01_hello_ranks.ipynb", "work/../../01_hello_ranks.ipynb"):
        reply = learner.post("rankroom/workshop/reset", {"notebook": way})
        assert reply.status == 400 and "outside" in reply.json["message"]
    assert not outside.exists()


def test_a_run_that_is_shown_is_followed_to_its_end(
    teacher: Server, learner: Server, folder: Folder
):
    _, run, writer = start_record(teacher.home)
    writer.append(log(0, "one\n"))
    words = {"folder": str(folder.path), "run": run.id}
    assert teacher.post("rankroom/workshop/show", words).status == 200
    wait_for(lambda: any(each["kind"] == "run" for each in own(learner)["messages"]))
    [shown] = [each for each in own(learner)["messages"] if each["kind"] == "run"]
    assert (shown["run"], shown["text"]) == (run.id, "x = 1")
    path = f"rankroom/workshop/runs/{run.id}"
    assert b"one" in learner.get(f"{path}/events").body
    writer.append(log(0, "two\n", 2))
    run.state, run.end = "done", run.start + 1_000_000
    writer.finish(run)
    wait_for(lambda: learner.get(path).json["state"] == "done")
    assert b"two" in learner.get(f"{path}/events").body
    assert learner.get(f"{path}/profile").status == 200
    # The run is read-only, and only for users with a token.
    assert learner.get(f"{path}/events", token=None).status in (401, 403)
    assert learner.post(f"{path}/interrupt").status == 404
    assert run.id not in [each.id for each in Store(learner.home).newest()]
    assert teacher.post("rankroom/workshop/show", {**words, "run": ""}).status == 200
    wait_for(lambda: all(each["kind"] != "run" for each in own(learner)["messages"]))


def test_a_run_that_is_shown_is_still_followed_after_a_server_restart(
    teacher: Server, learner: Server, folder: Folder
):
    store, run, writer = start_record(teacher.home)
    folder.show_run(store.paths(run.id))  # as if by a server that has ended since
    writer.append(log(0, "more\n"))
    run.state, run.end = "done", run.start + 1_000_000
    writer.finish(run)
    assert folder.shown().load(run.id).state == "running"
    overview(teacher, folder)  # as an open console does
    wait_for(lambda: folder.shown().load(run.id).state == "done")
    assert b"more" in learner.get(f"rankroom/workshop/runs/{run.id}/events").body


def test_a_shown_run_that_is_gone_is_looked_up_only_once(
    teacher: Server, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Although an open console asks repeatedly."""
    store, run, writer = start_record(teacher.home)
    folder.show_run(store.paths(run.id))
    writer.close()
    monkeypatch.setattr(workshop_routes, "COPY_INTERVAL_S", 0.01)
    said: list[tuple[object, ...]] = []
    handler: Any = SimpleNamespace(
        store=Store(tmp_path), log=SimpleNamespace(warning=lambda *words: said.append(words))
    )

    async def ask() -> None:
        for _ in range(3):
            await workshop_routes.go_on_following(handler, folder)
            if task := workshop_routes._following.get((str(folder.path), run.id)):
                await task
                await asyncio.sleep(0)

    asyncio.run(ask())
    assert len(said) == 1 and "no record" in str(said[0]), said


def test_a_shown_run_that_is_lost_is_followed_again(
    teacher: Server, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    """Its writer may be alive after all, or its record be completed later."""
    store, run, writer = start_record(teacher.home, owner=gone_process())
    writer.close()
    folder.show_run(store.paths(run.id))
    monkeypatch.setattr(workshop_routes, "COPY_INTERVAL_S", 0.01)
    handler: Any = SimpleNamespace(store=store, log=SimpleNamespace(warning=pytest.fail))
    key = str(folder.path), run.id

    async def ask() -> None:
        for _ in range(2):
            await workshop_routes.go_on_following(handler, folder)
            await workshop_routes._following[key]
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert folder.shown().load(run.id).state == "lost"
    assert key not in workshop_routes._followed


def test_showing_another_run_replaces_the_one_that_is_followed(teacher: Server, folder: Folder):
    _, first, first_writer = start_record(teacher.home)
    _, second, writer = start_record(teacher.home)
    for run in (first, second):
        words = {"folder": str(folder.path), "run": run.id}
        assert teacher.post("rankroom/workshop/show", words).status == 200
    second.state, second.end = "done", second.start + 1
    writer.finish(second)
    # By then, following the first run would have copied it again, and shown it.
    wait_for(lambda: folder.shown().load(second.id).state == "done")
    assert [each.run for each in folder.news() if each.kind == "show"][-1] == second.id
    # The first run, still running, is followed once it is shown again, by any means.
    folder.show_run(Store(teacher.home).paths(first.id))
    first_writer.append(log(0, "later\n", 0))
    assert teacher.get(f"rankroom/workshop?folder={folder.path}").status == 200
    wait_for(lambda: "later" in folder.shown().paths(first.id).events.read_text())
    first_writer.close()
