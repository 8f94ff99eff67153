"""The pages for teachers and centres, and slurm/workshop: their plans can be read, and their files,
ports and variables are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from checkout import ROOT
from rankroom import __version__, config
from rankroom.course import quiz
from rankroom.course.lessons import lesson
from rankroom.workshop import invitation, workshop_plan
from rankroom.workshop.workshop_plan import SEATS_OPEN_BEFORE_START_S, Plan

FILES = ROOT / "slurm" / "workshop"
CENTRE = (ROOT / "docs" / "workshop-centre.md").read_text("utf-8")
TEACHER = (ROOT / "docs" / "workshop.md").read_text("utf-8")
CONFIG = (FILES / "jupyterhub_config.py").read_text("utf-8")
UNIT = (FILES / "jupyterhub.service").read_text("utf-8")
PLANS = re.findall(r"```toml\n(.*?)```", TEACHER, re.DOTALL)
QUIZ_AND_QUESTIONS, BREAKS = 30, 135  # minutes in a whole day, lunch included


@pytest.mark.parametrize("text", PLANS, ids=["an hour", "a day", "two days"])
def test_each_plan_on_the_page_is_valid_and_fits_its_schedule(text: str):
    plan = workshop_plan.parsed(Path("page.toml"), text.encode())
    assert plan.of_site().seconds >= 60 * 60 and plan.starts and plan.ends
    for number, minutes in plan.lessons:
        assert minutes >= lesson(number).minutes, number
    days = (plan.ends.date() - plan.starts.date()).days + 1
    daily = (plan.ends.replace(day=plan.starts.day) - plan.starts).total_seconds() / 60
    taught = sum(minutes for _, minutes in plan.lessons)
    questions = len(quiz.questions_about([number for number, _ in plan.lessons]))
    rest = (QUIZ_AND_QUESTIONS + BREAKS) if daily > 240 else 2 * questions  # a minute each, twice
    assert taught <= days * (daily - rest), (taught, days, daily)
    assert (
        plan.of_site().seconds >= daily * 60 + SEATS_OPEN_BEFORE_START_S
    )  # for a seat taken early
    assert plan.of_site().scheduler != "none"  # learners join through a job


def test_the_page_says_how_many_questions_the_quiz_of_each_plan_has():
    plans = [workshop_plan.parsed(Path("page.toml"), text.encode()) for text in PLANS]
    words = {4: "four in the hour", 9: "nine in the day", 10: "ten in the two days"}
    counts = [len(quiz.questions_about([number for number, _ in each.lessons])) for each in plans]
    assert ", ".join(words[each] for each in counts) in " ".join(TEACHER.split())


def test_the_hubs_unit_has_the_folders_of_all_system_commands():
    """`runuser`, which starts each learner's job, is in one of those for administrators."""
    path = re.search(r"^Environment=PATH=(.+)$", UNIT, re.M)
    assert path and {"/usr/bin", "/bin", "/usr/sbin", "/sbin"} <= {*path[1].split(":")}


def test_every_key_of_a_plan_is_explained():
    table = TEACHER.partition("## The plan")[2].partition("\n\nThree")[0]
    told = {key for row in re.findall(r"^\| (`.+?`) \|", table, re.M)
            for key in re.findall(r"`(\w+)`", row)} | {"hub"}  # fmt: skip
    kept = {each.name for each in dataclasses.fields(Plan)}
    assert told == kept - {"scheduler", "login", "version"}  # filled in by `open`


def test_the_hub_reads_what_its_unit_sets():
    read = set(re.findall(r'os\.environ(?:\.get\(|\[)"(\w+)"', CONFIG))
    given = set(re.findall(r"^Environment=(\w+)=", UNIT, re.M))
    assert read == {"WORKSHOP_PLAN", "STATE_DIRECTORY", "HUB_ADDRESS"}
    assert read - {"STATE_DIRECTORY"} <= given and "StateDirectoryMode=0700" in UNIT
    for path in re.findall(r"^Environment=(?:WORKSHOP_PLAN|XDG_CONFIG_HOME)=(.+)$", UNIT, re.M):
        assert path in CENTRE


def test_the_page_has_the_ports_and_periods_of_the_configuration():
    ast.parse(CONFIG)
    for port in (8000, 8001):
        assert f'"http://127.0.0.1:{port}"' in CONFIG and f"127.0.0.1:{port}" in CENTRE
    assert "hub_port = 8081" in CONFIG and "8081 on `HUB_ADDRESS`" in CENTRE
    [period] = re.findall(r"startup_poll_interval = ([\d.]+)", CONFIG)
    assert f"`squeue` every {float(period):g} s" in " ".join(CENTRE.split())
    assert f"at most {40 / float(period):g} calls a second" in " ".join(CENTRE.split())
    assert "/hub/api/batchspawner" in CENTRE


def test_the_join_command_for_a_laptop_is_on_the_page():
    assert "`rankroom workshop join LOGIN:FOLDER`" in TEACHER
    assert invitation.at("login.example.org:/scratch/day") == ("login.example.org", "/scratch/day")


def test_the_page_names_every_file_of_the_folder():
    named = {each for each in re.findall(r"`([\w.]+)`", CENTRE) if (FILES / each).exists()}
    assert named == {each.name for each in FILES.iterdir()}
    refused = re.findall(r'f"\{STATE\} (is .+?):', CONFIG)
    assert refused and f"STATE {refused[0]}" in CENTRE


def test_the_image_installs_extras_and_a_wheel_that_exist():
    recipe = (FILES / "Containerfile").read_text("utf-8")
    project = config.parsed((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in (recipe, CENTRE):
        [extras] = set(re.findall(r"(?:whl|\))\[([\w,]+)\]", text))
        assert {*extras.split(",")} <= {*project["optional-dependencies"]}
    assert "rankroom horovod build ${HOROVOD} && rankroom horovod check" in recipe
    # Machines that build images, and login nodes, have no GPU that could be detected.
    assert "ARG HOROVOD=--no-gpu" in recipe and "--build-arg HOROVOD=--gpu" in recipe
    assert "rankroom horovod build --gpu" in CENTRE
    wheel = f"rankroom-{project['version']}-py3-none-any.whl"
    assert Path(wheel).match("rankroom-*.whl") and wheel in CENTRE


@pytest.mark.skipif(not shutil.which("tclsh"), reason="needs tclsh")
def test_the_module_file_prepends_the_environment_to_path(tmp_path: Path):
    """Environment Modules and Lmod run it as Tcl, with their own commands, which are faked here."""
    text = (FILES / "modulefile").read_text("utf-8")
    assert text.startswith("#%Module") and f"/apps/rankroom/{__version__}" in text
    words = (
        "proc module-whatis {text} {}\nproc conflict {name} {}\n"
        'proc prepend-path {name value} {puts "$name $value"}\n'
    )
    script = tmp_path / "module.tcl"
    script.write_text(words + text)
    done = subprocess.run(["tclsh", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"PATH /apps/rankroom/{__version__}/bin\n", "")
