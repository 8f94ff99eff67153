"""`rankroom workshop` as it is typed: what it does, checks and refuses, and its messages."""

import asyncio
import errno
import json
import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import another_user
import rankroom
from fake_scheduler import DOWN, FakeScheduler
from rankroom.cli import joined_workshop, main, watched_workshop, workshop_command
from rankroom.cli.terminal import Terminal
from rankroom.errors import LabError, UsageError
from rankroom.scheduler import probe, site, site_check
from rankroom.system import gpus, python_command
from rankroom.workshop import node_server, plan_check, seat, workshop_plan
from rankroom.workshop.invitation import keep_job
from rankroom.workshop.seat import SeatStatus
from rankroom.workshop.tiles import exercises
from rankroom.workshop.workshop_folder import Folder, open_folder
from record_makers import start_record
from workshops import opened, plan, reachable

ME = pwd.getpwuid(os.getuid()).pw_name


PROBED = {
    "python": "3.11.2", "executable": sys.executable, "host": "login",
    "rankroom": rankroom.__version__, "horovod": "0.28.1", "ours": True, "frameworks": [],
}  # fmt: skip


@pytest.fixture
def base(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # A real probe imports every framework, which takes seconds.
    monkeypatch.setattr(site_check, "PROBE_SOURCE", f"print({probe.MARK + json.dumps(PROBED)!r})")
    with reachable() as folder:
        yield folder


@pytest.fixture
def typed(base: Path) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, ["workshop", *map(str, words)])


@pytest.fixture
def written(base: Path) -> Callable[..., Path]:
    """Return a function that writes a plan to a file."""

    def write(**more) -> Path:
        file = base / "plan.toml"
        file.write_text(replace(plan(base / "may"), **more).to_toml())
        return file

    return write


# -- the teacher


def test_new_does_not_overwrite_a_plan(base: Path, typed: Callable):
    assert "wrote" in typed("new", base / "plan.toml").output
    again = typed("new", base / "plan.toml")
    assert again.exit_code == 1 and "is there already" in again.output


def test_check_of_a_valid_plan_leaves_no_files(base: Path, typed: Callable, written: Callable):
    done = typed("check", written(learners=(ME,)))
    assert done.exit_code == 0, done.output
    assert "✓ learners: its account exists" in done.output
    assert "✓ dates: 2 lessons in 35 minutes" in done.output
    assert "✓ folder: " in done.output and "can be made" in done.output
    assert [each.name for each in base.iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"learners": (ME, "nobody-of-that-name")}, "there is no account nobody-of-that-name"),
        ({"learners": (ME, ME)}, f"! learners: named twice: {ME}"),
        (
            {"ends": datetime(2020, 1, 2, tzinfo=timezone.utc), "starts": None},
            "workshop ended on 02",
        ),
        ({"lessons": ((1, 50), (2, 60))}, "! dates: 2 lessons in 110 minutes"),
        ({"lessons": ((1, 90),)}, "! dates: 1 lesson in 90 minutes"),
        ({"ranks": 1}, "01 Hello, ranks needs 2 ranks, and a seat has 1"),
        ({"folder": "/proc/may"}, "✗ folder: cannot make it in /proc"),
        ({"way": "hub", "hub": "http://127.0.0.1:9"}, "does not answer as JupyterHub"),
        ({"way": "hub", "hub": "http://127.0.0.1:9", "site": "nowhere"}, "sbatch"),
        ({"way": "hub", "hub": "http://127.0.0.1:9", "reservation": "r"}, "the reservation r"),
        ({"way": "ssh", "site": "nowhere"}, "sbatch"),
        (
            {"way": "ssh", "site": "local"},
            "✗ site: local has no scheduler, so that no one can join",
        ),
    ],
)
def test_check_reports_problems_of_a_plan(
    typed: Callable, written: Callable, more: dict[str, object], said: str
):
    done = typed("check", written(**more))
    assert said in done.output
    assert done.exit_code == (0 if said.startswith("!") else 1)


def test_check_warns_of_a_job_shorter_than_a_workshop_day(typed: Callable, written: Callable):
    starts = datetime.now(timezone.utc)
    days = {"starts": starts, "ends": starts + timedelta(days=1, hours=8)}
    about = {"way": "ssh", "site": "local", **days}
    said = typed("check", written(**about, time="08:59:00")).output
    assert "! dates" in said and "set `time` to 09:00:00" in said
    assert "✓ dates" in typed("check", written(**about, time="09:00:00")).output
    assert "✓ dates" in typed("check", written(**days, time="00:10:00")).output  # without a job


def test_check_names_profile_settings_that_learners_jobs_will_lack(
    typed: Callable, written: Callable, fake: FakeScheduler
):
    file = site.profile_of("ours")
    file.parent.mkdir(parents=True)
    file.write_text('[job]\npartition = "gpu"\nconstraint = "a100"\nextra = ["--exclusive"]\n')
    said = typed("check", written(way="ssh", site="ours")).output
    assert f"! profile: only you have {file}: learners' jobs will lack its constr" in said
    assert "will lack its constraint, extra." in said
    file.write_text('[job]\npartition = "gpu"\n')  # which the folder's plan passes on
    assert "profile: only you" not in typed("check", written(way="ssh", site="ours")).output


def test_check_gives_the_systems_spelling_of_an_account(
    typed: Callable, written: Callable, monkeypatch: pytest.MonkeyPatch
):
    known = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda user: known(user.lower()))
    done = typed("check", written(learners=(ME.upper(),)))
    assert f"! learners: the system's name for {ME.upper()} is {ME}: use that" in done.output


@pytest.mark.parametrize(
    ("mode", "said"), [(0o700, "learners cannot enter"), (0o710, "cannot (look into|make it in)")]
)
def test_check_reports_a_folder_that_the_teacher_cannot_enter(base: Path, mode: int, said: str):
    (base / "closed").mkdir()
    (base / "closed").chmod(mode)

    def there() -> str:
        try:
            return str(asyncio.run(plan_check._folder(plan(base / "closed" / "may"))))
        except UsageError as error:
            return str(error)

    assert re.search(said, another_user.call(there))


def test_a_learner_without_a_home_is_named(typed: Callable, written: Callable):
    assert not Path(pwd.getpwnam("nobody").pw_dir).exists()
    done = typed("check", written(learners=("nobody", ME)))
    assert "! learners: no home for nobody: unless the first login makes it" in done.output
    assert done.exit_code == 0


# The output of sacctmgr, the account in the plan, and the line of the check.
@pytest.mark.parametrize(
    ("said", "account", "line"),
    [
        (f"echo '{ME.upper()}|m1'", "", "✓ associations: all learners have one"),
        ("echo 'nobody|m1'", "", f"! associations: Slurm shows no association of {ME}: their"),
        ("true", "m1", "Slurm shows no association of the learners with the account m1: their"),
        ("echo >&2 'no accounting here'; exit 1", "", "does not tell who may submit jobs: no acc"),
    ],
)
def test_check_asks_slurm_who_may_submit_jobs_and_only_warns(
    typed: Callable, written: Callable, fake: FakeScheduler, base: Path,
    monkeypatch: pytest.MonkeyPatch, said: str, account: str, line: str,
):  # fmt: skip
    (base / "bin").mkdir()
    (base / "bin" / "sacctmgr").write_text(f'#!/bin/sh\necho "$@" >{base}/asked\n{said}\n')
    (base / "bin" / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{base}/bin{os.pathsep}{os.environ['PATH']}")
    about = {"way": "ssh", "site": "nowhere", "account": account, "gpus": 1}
    learners = (ME, "nobody") if "nobody" in said else (ME,)
    done = typed("check", written(**about, learners=learners))
    assert line in done.output, done.output
    assert "! GPUs: 2 ranks share 1 GPU" in done.output
    asked = (base / "asked").read_text()
    assert f"where user={','.join(learners)} " in asked and ("account=m1" in asked) == bool(account)


@pytest.mark.parametrize(
    ("there", "more", "line"),
    [
        (0, {}, "✓ this machine"),
        (8, {}, "8 GPUs, hidden from learners: `gpus` is what each gets"),
        (8, {"gpus": 2, "learners": (ME,)}, "✓ this machine"),
        (1, {"gpus": 2}, "✗ this machine: it has 1 GPU, and each learner is to have 2"),
        (1, {"gpus": 1, "learners": (ME,)}, "2 ranks share 1 GPU"),
        (2, {"gpus": 2, "learners": (ME, "nobody")}, "2 for each learner; learners share GPUs"),
    ],
)
def test_the_gpus_of_one_large_node_are_counted(
    typed: Callable, written: Callable, monkeypatch: pytest.MonkeyPatch, there: int,
    more: dict[str, object], line: str,
):  # fmt: skip
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: there)
    assert line in typed("check", written(**more)).output


def test_gpus_of_one_large_node_are_assigned_to_learners_in_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 8)
    users = ("ada", "bob", "cay", "dan", "eve")

    def seen(count: int, learners: tuple[str, ...] = users) -> list[str]:
        one = plan(Path("/x"), gpus=count, learners=learners)
        return [node_server.gpus_of_seat(one, user, 1000 + n) for n, user in enumerate(users)]

    assert seen(0) == [""] * 5  # all ranks use the CPU
    assert seen(2) == ["0,1", "2,3", "4,5", "6,7", "0,1"]
    assert seen(3) == ["0,1,2", "3,4,5", "6,7,0", "1,2,3", "4,5,6"]
    assert seen(16)[1] == "0,1,2,3,4,5,6,7"
    assert len({*seen(1, ())}) == 5  # without a list of learners, by user id
    monkeypatch.setenv(gpus.VISIBLE, "3, 5")  # the GPUs of the node that they may use
    assert seen(1)[:3] == ["3", "5", "3"]


def test_the_server_on_a_large_node_is_started_with_the_gpus_of_its_seat(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    given: dict[str, str] = {}

    def end_at_once(words: list[str], env: dict[str, str], **more) -> SimpleNamespace:
        given.update(env)
        return SimpleNamespace(pid=0, poll=lambda: 1, kill=lambda: None, wait=lambda: 1)

    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 4)
    monkeypatch.setattr(node_server.subprocess, "Popen", end_at_once)
    for count, seen in ((0, ""), (1, "1")):
        monkeypatch.delenv(gpus.VISIBLE, raising=False)
        one = plan(base, gpus=count, learners=("ada", ME))
        with pytest.raises(LabError, match="JupyterLab did not start"):
            node_server.start(one, "/may")
        assert (given[gpus.VISIBLE], given["RANKROOM_WORKSHOP"]) == (seen, "/may")


def test_learners_who_cannot_enter_are_named(base: Path, typed: Callable, written: Callable):
    base.chmod(0o750)
    done = typed("check", written(learners=("nobody", ME)))
    assert "! folder: by its modes" in done.output
    assert "cannot be entered by nobody" in done.output


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
    assert "laptop" not in done.output  # learners log in to the node
    done = typed("open", written(way="ssh", site="perlmutter"))
    assert f"rankroom workshop join perlmutter.nersc.gov:{base / 'may'}" in done.output


def test_messages_and_offers_of_the_teacher_become_news(base: Path, typed: Callable):
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


def test_offer_cell_refuses_a_file_that_is_not_text(base: Path, typed: Callable):
    folder = opened(base / "may")
    cell = base / "cell.py"
    cell.write_bytes("print('ü')".encode("latin-1"))
    done = typed("offer-cell", folder.path, cell)
    assert done.exit_code == 1 and f"{cell} is not text in" in done.output
    assert [each.kind for each in folder.news()] == ["open"]


def test_catch_up_goes_up_to_a_given_exercise_of_the_workshop(base: Path, typed: Callable):
    folder = opened(base / "may")
    seat.take(folder.path, folder.owner_uid)
    first, second = exercises(folder.plan())[:2]
    for words in ([], [second]):
        assert typed("catch-up", folder.path, ME, *words).exit_code == 0
    assert [each.text for each in folder.news()[1:]] == ["", second]
    done = typed("catch-up", folder.path, ME, "ring.99")
    assert done.exit_code != 0
    assert f"no exercise ring.99 in this workshop; there are {first}, {second}" in done.output


def test_watch_shows_learners_and_exercises(base: Path, typed: Callable):
    folder = opened(base / "may", learners=(ME, "zoe"))
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="stuck", why="rank 0 waits in allreduce", lesson=1))
    done = typed("watch", folder.path, "--once", "--exercises")
    assert "1 of 2 learners have joined" in done.output
    assert f"!  {ME}" in done.output and "rank 0 waits in allreduce" in done.output
    assert "zoe" in done.output and "has no seat yet" in done.output
    assert "hello.1" in done.output
    found = json.loads(typed("watch", folder.path, "--once", "--json").output)
    assert [each["needs"] for each in found["tiles"]] == ["stuck", ""]


def test_collect_writes_progress_as_csv(base: Path, typed: Callable):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(progress={"tries": {"hello.1": 2}, "passed": {"hello.1": "2026-05-14"}}))
    assert "1 learner\n" in typed("collect", folder.path, "-o", base / "out.csv").output
    head, line = (base / "out.csv").read_text().splitlines()
    assert head.startswith("learner,lesson,passed,tried,quiz before,quiz after,shares,hello.1,")
    assert line.startswith(f"{ME},,1,1,,,yes") and "2026-05-14" in line


def test_end_waits_for_all_seats_and_names_those_still_running(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="ended"))
    monkeypatch.setattr("rankroom.workshop.workshop_folder.END_WARNING_S", 0.2)
    done = typed("end", folder.path)
    assert done.exit_code == 0, done.output
    assert "Test workshop has ended, and no job of it is left" in done.output
    assert folder.is_over()
    own.write(SeatStatus(state="running"))
    monkeypatch.setattr(watched_workshop, "JOB_END_TIMEOUT_S", 0.2)
    said = typed("end", folder.path).output
    assert f"{ME}'s JupyterLab has not reported that it ended" in said
    assert "they end once that learner types `rankroom workshop leave`" in said


def test_end_does_not_wait_for_a_seat_that_was_already_silent(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="idle"))
    yesterday = time.time() - 86_400
    os.utime(own.path, (yesterday, yesterday))
    monkeypatch.setattr("rankroom.workshop.workshop_folder.END_WARNING_S", 0.1)
    monkeypatch.setattr(watched_workshop, "JOB_END_TIMEOUT_S", 0.2)
    done = typed("end", folder.path)
    assert done.exit_code == 0 and "has not reported" not in done.output
    assert f"no contact with {ME}: ranks of theirs may still be running" in done.output


def ending(base: Path, monkeypatch: pytest.MonkeyPatch, **more) -> Folder:
    """Open a workshop whose only seat, with the job 11, has ended; shorten all timeouts."""
    folder = opened(base / "may", way="ssh", site="nowhere", learners=(ME, "zoe"), **more)
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="ended", job="11"))
    monkeypatch.setattr("rankroom.workshop.workshop_folder.END_WARNING_S", 0.1)
    monkeypatch.setattr(watched_workshop, "JOB_END_TIMEOUT_S", 0.2)
    monkeypatch.setattr(watched_workshop, "SEAT_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(watched_workshop, "SCHEDULER_POLL_INTERVAL_S", 0.05)
    return folder


def test_end_reports_remaining_jobs_of_seats_and_pending_ones(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler
):
    folder = ending(base, monkeypatch)
    fake.instead("scontrol", "echo 'PrivateData             = none'")
    # A learner's own JupyterLab, and the jobs of other users, are none of the workshop's.
    fake.instead("squeue", "echo '12|zoe|RUNNING|lab\n11|eve|RUNNING|x\n13|eve|PENDING|lab'")
    done = typed("end", folder.path)
    assert done.exit_code == 0 and "no job of it is left" in done.output
    fake.instead("squeue", f"echo '11|{ME}|RUNNING|x\n14|zoe|PENDING|workshop'")
    done = typed("end", folder.path)
    assert done.exit_code == 1
    assert f"job 11 of {ME} still exists (running)" in done.output
    assert "job 14 of zoe still exists (pending)" in done.output


def test_end_calls_remaining_jobs_unknown_if_slurm_hides_them(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler
):
    folder = ending(base, monkeypatch)
    fake.instead("squeue", 'case " $* " in *" --all "*) ;; *) exit 1 ;; esac; ! env | grep SQUEUE_')
    monkeypatch.setenv("SQUEUE_USERS", ME)
    fake.instead("scontrol", "echo 'PrivateData             = users,jobs'")
    done = typed("end", folder.path)
    assert done.exit_code == 1 and "no job of it is left" not in done.output
    assert "unknown whether any of its jobs are left (Slurm's PrivateData shows" in done.output
    fake.fails("scontrol", DOWN)
    done = typed("end", folder.path)
    assert done.exit_code == 1 and "unknown whether any of its jobs are left" in done.output
    fake.instead("scontrol", "echo 'PrivateData             = none'")
    assert typed("end", folder.path).exit_code == 0


@pytest.mark.parametrize("way", ["ssh", "hub"])
def test_end_calls_remaining_jobs_unknown_if_the_scheduler_fails(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler, way: str
):
    folder = ending(base, monkeypatch)
    open_folder(replace(folder.plan(), way=way, hub="https://hub.site"))
    fake.fails("squeue", DOWN)
    done = typed("end", folder.path)
    assert done.exit_code == 1 and "no job of it is left" not in done.output
    assert "it is unknown whether any of its jobs are left (nowhere: `squeue" in done.output


def test_end_asks_pbs_about_remaining_jobs(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler
):
    folder = ending(base, monkeypatch, scheduler="pbs")
    fake.set("11", f'"job_state": "R", "Job_Name": "lab", "Job_Owner": "{ME}@login.site"')
    done = typed("end", folder.path)
    assert done.exit_code == 1 and f"job 11 of {ME} still exists (running)" in done.output
    # Another user's job, though the seat names it.
    fake.set("11", '"job_state": "R", "Job_Name": "lab", "Job_Owner": "eve@login.site"')
    assert typed("end", folder.path).exit_code == 0
    # A message about another job says nothing about this one.
    fake.fails("qstat", "qstat: Unknown Job Id 9.pbs-01", 153)
    done = typed("end", folder.path)
    assert done.exit_code == 1 and "no job of it is left" not in done.output
    assert "it is unknown whether any of its jobs are left" in done.output
    fake.fails("qstat", "qstat: Unknown Job Id 11.pbs-01", 153)
    assert typed("end", folder.path).exit_code == 0


def test_end_ignores_job_ids_that_are_not_short_numbers(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch, fake: FakeScheduler
):
    folder = ending(base, monkeypatch, scheduler="pbs")
    own = seat.mine()
    for job in ("١١", "1" * 200, "11 12", "-x"):
        own.write(SeatStatus(state="ended", job=job))
        assert typed("end", folder.path).exit_code == 0
    assert fake.calls("qstat") == []


def test_end_recognizes_the_ended_seat_of_a_learner_who_shares_nothing(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.share(False)
    own.write(SeatStatus(state="ended", why="private"))
    monkeypatch.setattr("rankroom.workshop.workshop_folder.END_WARNING_S", 0.1)
    done = typed("end", folder.path)
    assert done.exit_code == 0 and "has not reported" not in done.output
    assert "private" not in own.path.read_text()


def test_watch_and_end_continue_after_a_failed_read_of_the_seats(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="ended"))
    whole, looks = Folder.seats, []

    def seats(here: Folder) -> list[seat.Seat]:
        looks.append(here)
        if 1 < len(looks) < 4:
            raise UsageError("the file server is away")
        if len(looks) > 5:
            raise KeyboardInterrupt
        return whole(here)

    monkeypatch.setattr(Folder, "seats", seats)
    monkeypatch.setattr(watched_workshop, "SEAT_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("rankroom.workshop.workshop_folder.END_WARNING_S", 0.1)
    said = typed("watch", folder.path).output
    assert said.count("1 of 1 learners have joined") == 3
    assert said.count("the file server is away: trying again") == 1
    del looks[:]
    monkeypatch.setattr(watched_workshop, "SEAT_POLL_INTERVAL_S", 0.1)
    assert "no job of it is left" in typed("end", folder.path).output
    looks[:] = [folder]
    assert typed("watch", folder.path).exit_code == 1  # an error in the first look ends it


def test_show_follows_a_live_run_until_it_is_no_longer_shown(
    base: Path, typed: Callable, home: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    _, run, _ = start_record(home)

    def meanwhile(seconds: float) -> None:
        folder.show_run(None)

    monkeypatch.setattr(workshop_command.time, "sleep", meanwhile)
    done = typed("show", folder.path, run.id)
    assert f"all learners can open the run {run.id}" in done.output
    assert "is no longer shown: another one is, or none" in done.output
    assert [each.run for each in folder.news() if each.kind == "show"] == [run.id, ""]


@pytest.mark.parametrize(
    "words", [["watch", "--once"], ["say", "hello"], ["timer", "5"], ["collect"], ["end"],
              ["catch-up", ME], ["show", "--off"]],
)  # fmt: skip
def test_teacher_commands_are_refused_to_other_users(base: Path, words: list[str]):
    folder = opened(base / "may")

    def there() -> str:
        os.environ["RANKROOM_HOME"] = "/nonexistent"
        command = ["workshop", words[0], str(folder.path), *words[1:]]
        return CliRunner().invoke(main, command).output

    said = another_user.call(there)
    assert f"the workshop in {folder.path} is {ME}'s, who alone sees its learners" in said
    assert [each.kind for each in folder.news()] == ["open"]


# -- the learner


def test_learner_commands_are_refused_without_a_seat(typed: Callable):
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
    assert "you have left the workshop" in typed("leave").output
    assert folder.seats() == []


def test_without_a_server_the_seat_is_written_by_the_command(base: Path, typed: Callable):
    folder = opened(base / "may")
    own = seat.take(folder.path, folder.owner_uid)
    own.write(SeatStatus(state="idle", lesson=2))
    typed("hand")
    [found] = folder.seats()
    assert found.status.hand and (found.status.state, found.status.lesson) == ("idle", 2)
    typed("share", "--off")
    [found] = folder.seats()
    assert not found.status.shares and found.status.hand and found.status.lesson is None
    own.path.unlink()
    for words in (["hand"], ["share", "--off"]):
        done = typed(*words)
        assert done.exit_code == 1 and "your teacher may not see this" in done.output
    assert not own.path.exists()


def test_share_off_with_a_full_home_updates_the_seat_and_warns(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    def full(*about: object, **more: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    folder = opened(base / "may")
    seat.take(folder.path, folder.owner_uid).write(SeatStatus(state="idle", lesson=2))
    monkeypatch.setattr(seat, "write_atomically", full)
    done = typed("share", "--off")
    assert done.exit_code == 1 and "your choice may be lost" in done.output
    [found] = folder.seats()
    assert not found.status.shares and found.status.lesson is None


def test_learner_commands_name_the_site_where_the_seat_is(base: Path, typed: Callable):
    keep_job("/scratch/may", "mysite", "4711")
    for words in (["hand"], ["share", "--off"], ["leave"]):
        done = typed(*words)
        assert done.exit_code == 1
        assert "your seat in /scratch/may belongs to your job 4711 at mysite" in done.output


def test_leave_ends_the_server_even_without_a_seat(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_server, "stop", lambda: True)
    done = typed("leave")
    assert (done.exit_code, done.output) == (0, "your JupyterLab has ended\n")


def started_server(pid: int, workshop: str) -> Path:
    """Write a starting server's files, as `join` does; return the one it writes once it listens."""
    folder = node_server.folder()
    folder.mkdir(parents=True, exist_ok=True)
    runtime = folder / f"run-{pid}"
    runtime.mkdir()
    about = {
        "host": socket.gethostname(), "pid": pid, "runtime": str(runtime), "workshop": workshop,
    }  # fmt: skip
    (folder / "server.json").write_text(json.dumps(about))
    return runtime / f"jpserver-{pid}.json"


def test_leave_on_a_large_node_ends_the_clusters_of_the_workshop(
    base: Path, typed: Callable, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(base / "may")
    seat.take(folder.path, folder.owner_uid)
    ended: list[Path] = []
    monkeypatch.setattr(joined_workshop, "end_clusters", lambda folder: ended.append(folder.path))
    started_server(2**22 + 1, str(folder.path))  # no such process: it has died
    assert "you have left the workshop in" in typed("leave").output
    assert ended == [folder.path]


def test_a_server_that_is_starting_is_waited_for(base: Path, monkeypatch: pytest.MonkeyPatch):
    listens = started_server(4711, "/may")
    monkeypatch.setattr(node_server, "_is_ours", lambda pid: pid == 4711)
    monkeypatch.setattr(node_server.os, "kill", lambda pid, sign: pytest.fail("it was ended"))

    def in_a_while(holds: Callable[[], bool], seconds: float) -> bool:
        assert not holds()
        listens.write_text('{"hostname": "127.0.0.1", "port": 20001, "token": "abc"}')
        return holds()

    monkeypatch.setattr(node_server, "poll_until", in_a_while)
    assert node_server.start(plan(base), "/may").port == 20001


def test_a_failed_start_leaves_a_newer_server_running(base: Path, monkeypatch: pytest.MonkeyPatch):
    def too_late(holds: Callable[[], bool], seconds: float) -> bool:
        started_server(4711, "/may")
        return False

    monkeypatch.setattr(gpus, "gpus_of_driver", lambda: 0)
    process = SimpleNamespace(pid=4710, poll=lambda: None, kill=lambda: None, wait=lambda: 1)
    monkeypatch.setattr(node_server.subprocess, "Popen", lambda words, **more: process)
    monkeypatch.setattr(node_server, "_is_ours", lambda pid: pid == 4711)
    monkeypatch.setattr(node_server.os, "kill", lambda pid, sign: pytest.fail("it was ended"))
    monkeypatch.setattr(node_server, "poll_until", too_late)
    with pytest.raises(LabError, match="JupyterLab did not start"):
        node_server.start(plan(base), "/may")
    assert node_server.workshop_here() == "/may"


def test_two_joins_at_once_have_one_job(base: Path, monkeypatch: pytest.MonkeyPatch):
    folder = opened(base / "may", way="ssh", site="nowhere")
    attached: list[str | None] = []

    class Slow:
        def __init__(self, *given, **more) -> None:
            self.submitted = given[6]

        async def run(self, attach: str | None, last: object) -> None:
            attached.append(attach)
            if attach is None:
                await asyncio.sleep(0.2)
                self.submitted(SimpleNamespace(job="11"))
                await asyncio.sleep(0.2)  # the other join need not wait for its end

    async def lives(scheduler: object, job: str) -> bool:
        return True

    async def both() -> None:
        joins = (
            joined_workshop.join_workshop(str(folder.path), 0, False, Terminal()) for _ in range(2)
        )
        await asyncio.gather(*joins)

    monkeypatch.setattr(joined_workshop, "LabCommand", Slow)
    monkeypatch.setattr(joined_workshop, "_lives", lives)
    asyncio.run(both())
    assert attached == [None, "11"]


def test_a_server_of_another_workshop_is_not_joined(base: Path, monkeypatch: pytest.MonkeyPatch):
    folder = node_server.folder()
    folder.mkdir(parents=True)
    about = {"host": socket.gethostname(), "pid": 4711, "runtime": str(folder), "workshop": "/may"}
    (folder / "server.json").write_text(json.dumps(about))
    listens = {"hostname": "127.0.0.1", "port": 20001, "token": "abc"}
    (folder / "jpserver-4711.json").write_text(json.dumps(listens))
    monkeypatch.setattr(node_server, "_is_ours", lambda pid: True)
    stopped = []

    def stop() -> bool:
        stopped.append(True)
        raise LabError("it is ended first")

    monkeypatch.setattr(node_server, "stop", stop)
    assert node_server.start(plan(base), "/may").port == 20001 and not stopped
    with pytest.raises(LabError, match="it is ended first"):
        node_server.start(plan(base), "/june")


def test_join_prints_the_address_of_the_hub(base: Path, typed: Callable):
    folder = opened(base / "may", way="hub", hub="https://hub.site/base/")
    done = typed("join", folder.path, "--no-browser")
    address = "https://hub.site/base/hub/user-redirect/lab/tree/Test-workshop/01_hello_ranks.ipynb"
    assert f"open {address}\n" in done.output


def test_join_refuses_a_missing_or_finished_workshop(base: Path, typed: Callable):
    assert "there is no workshop in /none" in typed("join", "/none").output
    folder = opened(base / "may")
    folder._tell(kind="end", until=time.time() - 1)
    assert "the workshop Test workshop is over" in typed("join", folder.path).output


def test_open_writes_the_completed_plan(base: Path, typed: Callable, written: Callable):
    typed("open", written(way="ssh", site="perlmutter"))
    found = Folder(base / "may").plan()
    assert found.login == "perlmutter.nersc.gov"
    assert found == workshop_plan.opened(workshop_plan.read(base / "plan.toml"))


def test_another_users_process_is_not_the_server_that_was_started_here(home: Path):
    words = python_command.command(
        "jupyterlab", f"--config={node_server.folder() / 'config.py'}", python=["python"]
    )
    waits = "import sys; print(flush=True); sys.exit(sys.stdin.readline() and 0)\n"
    for user, is_ours in ((another_user.UID, False), (os.getuid(), True)):
        with another_user.start(waits + words[2], *words[3:], uid=user) as other:
            assert other.stdout is not None and other.stdout.readline() == "\n"
            assert node_server._is_ours(other.pid) is is_ours
            other.communicate("\n")
