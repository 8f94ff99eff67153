"""Workshops on the test cluster, opened, joined in each way, watched and ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

import workshop_trial
from labs import PYTHON, Typed, end_lines, jobs, make_home, profile
from machines import Machines
from rankroom.course.lessons import LESSONS
from workshop_machines import FOLDER, TEACHER, WAY, Workshop
from workshop_trial import BRIEF_WARNING_S

LEARNERS = ["ada", "bob", "cay"]
LAB = re.compile(r"JupyterLab: (http://127\.0\.0\.1:(\d+)/lab/tree/\S+\?token=(\S+))")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Two nodes, a teacher, learners, and a user who is not invited."""
    made = Machines(nodes=2, users=[*LEARNERS, TEACHER, "eve"])
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def workshop(machines: Machines) -> Iterator[Workshop]:
    made = Workshop(machines, LEARNERS)
    yield made
    made.close()


def test_the_console_follows_three_learners_to_the_end(machines: Machines, workshop: Workshop):
    trial = workshop_trial.Trial(workshop, print, is_brief=True)
    found = trial.run()
    print("\n".join(found.lines))
    assert found.failed == []
    # The console showed the hanging learner as stuck, and the lesson's intended failure.
    assert found.stuck == [LEARNERS[1]]
    assert sorted(found.broken) == LEARNERS
    stuck = [
        view.tiles["bob"]["status"]["why"] for view in trial.views
        if "bob" in view.tiles and view.tiles["bob"]["status"]["state"] == "stuck"
    ]  # fmt: skip
    assert re.search(r"rank 0 waits in .*; rank 1 ", stuck[0]), stuck
    said = [json.loads(line) for line in trial.players["cay"].lines]
    assert [each["cell"] for each in said if each["raised"]] == ["fail"]
    # The learners solved 0, 1 and 2 exercises.
    head, *lines = trial.collected.splitlines()
    assert len(lines) == 3 and "hello.1" in head
    rows = {line.split(",")[0]: dict(zip(head.split(","), line.split(","), strict=True))
            for line in lines}  # fmt: skip
    assert [rows[user]["passed"] for user in LEARNERS] == ["0", "1", "2"]
    assert rows["ada"]["hello.1"] == "1 try"
    assert found.apart_s >= 1.9
    assert found.writes <= 0.52


def test_a_learner_joins_twice_and_has_one_job(machines: Machines, workshop: Workshop):
    workshop.open()
    first = workshop.join("ada")
    way = first.until(WAY.search)
    workshop.until_tile("ada", lambda tile: tile["status"])
    again = workshop.join("ada")
    assert again.until(WAY.search).groups() == way.groups()
    assert "is yours already" in again.text
    assert len(jobs(machines, "ada")) == 1
    assert "Trial, of Tom Teacher (teacher)" in first.text
    assert way[3].endswith(f"/lab/tree/Trial/01_hello_ranks.ipynb?token={way[4]}")
    copies = machines.home("ada") / "Trial"
    assert sorted(each.name for each in copies.iterdir()) == [each.file for each in LESSONS]
    assert "Permission denied" in machines.run("login", ["ls", "/home/ada/Trial"], "bob")
    # In a terminal, learners can raise a hand and stop sharing.
    workshop.typed("ada", "hand")
    workshop.until_tile("ada", lambda tile: tile["needs"] == "hand")
    workshop.typed("ada", "share", "--off")
    tile = workshop.until_tile("ada", lambda tile: not tile["status"]["shares"])
    assert (tile["status"]["job"], tile["status"]["host"]) == ("", "")
    # Only the teacher can watch.
    assert "who alone sees its learners" in workshop.typed("bob", "watch", FOLDER, "--once")


def test_a_laptop_joins_over_ssh(machines: Machines, workshop: Workshop):
    # The laptop's key logs in to the account of the first user.
    assert machines.users[0] == "ada"
    workshop.open()
    laptop = machines.root / "laptop-home"
    home = make_home(machines, laptop, "root", test=profile(nodes=1))
    try:
        with Typed(
            machines, "laptop", "root", home, [f"login:{FOLDER}"],
            ("workshop", "join", "--no-browser"),
        ) as typed:  # fmt: skip
            typed.until("Trial, of Tom Teacher")
            found = typed.until(LAB.pattern)
            words = [PYTHON, "-c", ASK, found[2], found[3]]
            assert machines.run("laptop", words).strip() == "200"
            tile = workshop.until_tile("ada", lambda tile: (tile["status"] or {}).get("job"))
            assert tile["status"]["job"] in jobs(machines, "ada")
            assert "no job of it is left" in workshop.end(BRIEF_WARNING_S)
            assert typed.ended() == 0
            assert "is over" in typed.text
    finally:
        end_lines(machines, home)


@pytest.mark.thorough
def test_learners_share_one_large_node_without_a_scheduler(machines: Machines, workshop: Workshop):
    """Each learner has a JupyterLab on one machine, without a scheduler: it outlives the command
    that started it, is found again, and accepts only its own token."""
    workshop.open(way="node")
    servers = {}
    for user in ("ada", "bob"):
        said = workshop.typed(user, "join", FOLDER)
        found = LAB.search(said)
        assert found, said
        servers[user] = found
        assert workshop.typed(user, "join", FOLDER).splitlines()[-2] == said.splitlines()[-2]
    assert jobs(machines, "ada") == []
    ports = machines.run("login", ["ss", "-Hltn"])
    for user, found in servers.items():
        assert f"127.0.0.1:{found[2]} " in ports
        assert f"0.0.0.0:{found[2]} " not in ports
        for token, status in ((found[3], "200"), ("", "403"), (servers["bob"][3], None)):
            said = machines.run("login", [PYTHON, "-c", ASK, found[2], token], "eve").strip()
            assert said == (status or ("200" if user == "bob" else "403"))
    # No other user can read the token from a command line, an environment or a file.
    shown = machines.run("login", ["ps", "axeww", "-o", "args"], "eve")
    assert servers["ada"][3] not in shown
    searched = machines.run(
        "login",
        ["grep", "-rls", "-D", "skip", "-e", servers["ada"][3], "/home", "/tmp", "/dev/shm"],
        "bob",
    )
    assert searched == ""
    player = workshop.play_at(
        "ada", f"http://127.0.0.1:{servers['ada'][2]}", servers["ada"][3], solved=["hello.1"]
    )
    player.until(lambda text: '"cell": "end"' in text)
    tile = workshop.until_tile("ada", lambda tile: tile["status"]["lesson"] == 1)
    assert tile["status"]["ranks"] == {"alive": 2, "of": 2}
    assert "has ended" in workshop.end(BRIEF_WARNING_S)
    workshop.until_nothing_runs()


# -- refusals


def test_a_refused_join_says_why_and_starts_no_job(machines: Machines, workshop: Workshop):
    make_home(machines, machines.home("eve") / "own", "eve")
    workshop.open()
    said = workshop.typed("eve", "join", FOLDER)
    assert "eve is not in the list of learners of Trial: ask teacher" in said
    assert jobs(machines, "eve") == []
    workshop.open(more="ends = 2026-01-01T00:00:00Z")
    assert "the workshop Trial is over" in workshop.typed("ada", "join", FOLDER)
    workshop.open(more="starts = 2099-01-01T00:00:00Z")
    assert "Trial begins on Thursday 01 January" in workshop.typed("ada", "join", FOLDER)
    assert "there is no workshop in /home/none" in workshop.typed("ada", "join", "/home/none")
    assert jobs(machines, "ada") == []


@pytest.mark.thorough
def test_a_missing_reservation_is_named_and_starts_no_job(machines: Machines, workshop: Workshop):
    workshop.open(more='reservation = "course"')
    said = workshop.typed("ada", "join", FOLDER)
    assert "the reservation course of this workshop does not take your job" in said
    assert "Ask teacher" in said
    assert jobs(machines, "ada") == []
    plan = "/home/teacher/plan.toml"
    assert "Slurm does not show the reservation course" in workshop.typed(TEACHER, "check", plan)


@pytest.mark.thorough
def test_a_reservation_is_checked_and_used(machines: Machines, workshop: Workshop):
    made = machines.run(
        "ctl", ["scontrol", "create", "reservation", "ReservationName=course", "StartTime=now",
                "Duration=60", "Users=ada,teacher", "Nodes=c1"],
    )  # fmt: skip
    assert "created" in made, made
    try:
        workshop.open(more='reservation = "course"', learners=["ada", "bob"])
        said = workshop.typed(TEACHER, "check", "/home/teacher/plan.toml")
        assert "course is not for bob" in said
        workshop.open(more='reservation = "course"', learners=["ada"])
        said = workshop.typed(TEACHER, "check", "/home/teacher/plan.toml")
        assert "✓ reservation: course has 1 node until" in said, said
        joined = workshop.join("ada")
        joined.until(WAY.search)
        [job] = jobs(machines, "ada")
        shown = machines.run("ctl", ["scontrol", "show", "job", job])
        assert "Reservation=course" in shown and "NodeList=c1" in shown
    finally:
        workshop.close()
        machines.run("ctl", ["scontrol", "delete", "ReservationName=course"])


@pytest.mark.thorough
def test_workshop_check_reports_a_missing_account(machines: Machines, workshop: Workshop):
    workshop.open(learners=[*LEARNERS, "zoe"])
    said = workshop.typed(TEACHER, "check", "/home/teacher/plan.toml")
    assert "✗ learners: there is no account zoe" in said
    assert "✓ folder: /home/course/trial is there, and learners can enter it" in said
    assert "✓ account and partition" in said
    workshop.open()
    said = workshop.typed(TEACHER, "check", "/home/teacher/plan.toml")
    assert f"✓ learners: all {len(LEARNERS)} accounts exist" in said
    assert "✗" not in said, said


def test_joining_with_an_older_version_is_refused(machines: Machines, workshop: Workshop):
    workshop.open()
    plan = machines.root / FOLDER.lstrip("/") / "workshop.toml"
    plan.write_text(re.sub('version = ".*"', 'version = "99.1"', plan.read_text()))
    said = workshop.typed("ada", "join", FOLDER)
    assert "Trial was opened with Rankroom 99.1, but" in said
    assert "deactivate" in said
    assert jobs(machines, "ada") == []


@pytest.mark.thorough
def test_a_job_started_after_the_workshop_ends_by_itself(machines: Machines, workshop: Workshop):
    workshop.open()
    held = machines.run(
        "login", ["sbatch", "--parsable", "-N2", "--exclusive", "--wrap=sleep 300"], "bob"
    ).strip()
    try:
        joined = workshop.join("ada")
        joined.until(lambda text: "is waiting in the queue" in text)
        assert "no job of it is left" not in workshop.end(BRIEF_WARNING_S)
        machines.run("login", ["scancel", held], "bob")
        joined.ended()
        workshop.until_nothing_runs()
    finally:
        machines.run("login", ["scancel", held], "bob")
        machines.until_idle()


# Sends a request to a server on loopback: through the tunnel, or on the server's machine.
ASK = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/api/contents",
                                 headers={"Authorization": f"token {sys.argv[2]}"})
try:
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
