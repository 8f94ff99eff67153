"""A workshop's plan: what it may contain, errors with their line, and the job that it requests."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rankroom.errors import UsageError
from rankroom.scheduler import site
from rankroom.workshop import workshop_plan
from rankroom.workshop.workshop_plan import SEATS_OPEN_BEFORE_START_S
from workshops import NOON, plan

GOOD = """\
name = "Training, May"
folder = "/scratch/may"
site = "perlmutter"
lessons = [1, [2, 45]]
starts = 2026-05-14T09:00:00+02:00
ends = 2026-05-14T17:00:00+02:00
learners = ["alice", "bob"]
memory = 16000
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return file


def test_the_settings_of_a_plan_are_read(tmp_path: Path):
    found = workshop_plan.read(written(tmp_path, GOOD))
    assert found.lessons == ((1, 15), (2, 45))  # a lesson's own minutes, unless the plan has others
    assert found.starts == datetime(2026, 5, 14, 7, 0, tzinfo=timezone.utc)
    assert found.learners == ("alice", "bob")
    assert found.memory == "16000"
    assert (found.ranks, found.way) == (2, "ssh")


def test_a_plan_written_as_toml_is_read_back_unchanged(tmp_path: Path):
    found = workshop_plan.read(written(tmp_path, GOOD))
    again = workshop_plan.read(written(tmp_path, found.to_toml()))
    assert again == found


def test_the_template_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    found = workshop_plan.read(written(tmp_path, workshop_plan.template()))
    assert found.lessons and found.starts and found.ends
    # A job that starts as soon as seats open lasts until the end, too.
    assert found.seconds(found.starts.timestamp() - SEATS_OPEN_BEFORE_START_S) >= (
        (found.ends - found.starts).total_seconds() + SEATS_OPEN_BEFORE_START_S
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name =", "nane =", "line 1: nane is not known (did you mean name?)"),
        ('"/scratch/may"', '"may"', "line 2: folder is an absolute path"),
        ('"/scratch/may"', '"/scratch/../may"', "line 2: folder is an absolute path"),
        ('site = "perlmutter"', 'way = "bus"', "line 3: way is one of ssh, node, hub"),
        ('site = "perlmutter"', "", "site is missing"),
        ('site = "perlmutter"', 'way = "hub"', "hub is the address of JupyterHub"),
        ("[1, [2, 45]]", "[1, 77]", "line 4: lessons cannot be: there is no lesson 77"),
        ("[1, [2, 45]]", '["one"]', "line 4: lessons is a list of numbers"),
        ("[1, [2, 45]]", "[[1, 2, 3]]", "line 4: lessons is a list of numbers"),
        ("starts = 2026-05-14T09:00:00+02:00", 'starts = "nine"', "line 5: starts is a date with"),
        ("starts = 2026-05-14T09", "starts = 2026-05-15T09", "line 6: ends is not after starts"),
        ('["alice", "bob"]', '["alice; rm"]', "line 7: learners is a list of accounts"),
        ('["alice", "bob"]', '"alice"', "line 7: learners must be a list of strings"),
        ("memory = 16000", 'memory = "lots"', "line 8: memory must be megabytes"),
        ("memory = 16000", 'time = "long"', "line 8: time "),
        ("memory = 16000", "ranks = 0", "line 8: ranks must be at least 1"),
        ("memory = 16000", 'reservation = "a b"', "line 8: reservation must be a single word"),
        ("memory = 16000", 'preload = "$(id)"', "line 8: preload names modules"),
        ("memory = 16000", "[job]\nranks = 2", "line 8: job is a table"),
        ('"Training, May"', '"$(id)"', "line 1: name "),
        ("memory = 16000", "memory =", "plan.toml: "),
    ],
)
def test_an_invalid_setting_is_refused_with_its_line(tmp_path: Path, old: str, new: str, said: str):
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        workshop_plan.read(written(tmp_path, GOOD.replace(old, new, 1)))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path):
    for raw in (b"\xff\xfe", b"# " + b"x" * 70_000):
        (tmp_path / "plan.toml").write_bytes(raw)
        with pytest.raises(UsageError):
            workshop_plan.read(tmp_path / "plan.toml")
    with pytest.raises(UsageError, match="cannot read"):
        workshop_plan.read(tmp_path / "none.toml")


def test_a_time_without_a_zone_is_local_time(tmp_path: Path):
    text = GOOD.replace("+02:00", "")
    found = workshop_plan.read(written(tmp_path, text))
    assert found.starts is not None and found.starts == datetime(2026, 5, 14, 9).astimezone()


def test_the_scheduled_lesson_follows_from_the_time():
    one = replace(plan(Path("/x")), lessons=((1, 15), (2, 20)), starts=NOON, ends=None)
    at = NOON.timestamp()
    assert [one.lesson_at(at + 60 * m) for m in (-1, 0, 14, 15, 34, 35)] == [
        None, 1, 1, 2, 2, 2,
    ]  # fmt: skip
    assert replace(one, lessons=()).lesson_at(at) is None


def test_a_job_ends_with_the_workshop():
    one = replace(plan(Path("/x")), time="02:00:00", ends=NOON)
    assert one.seconds(NOON.timestamp() - 600) == 600
    assert one.seconds((NOON - timedelta(hours=5)).timestamp()) == 7200
    assert one.of_site(NOON.timestamp() - 600).job.time == "00:10:00"


def test_the_job_asks_for_what_the_plan_says():
    one = replace(
        plan(Path("/x")), site="perlmutter", reservation="course", ranks=2, gpus=2, memory="8G",
        partition="gpu", qos="training", account="m1", cpus=4, preload="torch",
    )  # fmt: skip
    found = one.of_site()
    job = found.job
    assert (job.reservation, job.partition, job.qos, job.account) == (
        "course", "gpu", "training", "m1",
    )  # fmt: skip
    assert (job.nodes, job.ranks_per_node, job.gpus_per_node, job.cpus_per_task) == (1, 2, 2, 4)
    assert job.memory_per_node == "8G"
    assert found.environment.preload == "torch"


def test_a_learner_without_a_profile_runs_the_current_python():
    import sys

    one = replace(plan(Path("/x")), site="nowhere", scheduler="pbs", login="login.nowhere")
    found = one.of_site()
    assert (found.scheduler, found.login) == ("pbs", "login.nowhere")
    assert found.environment.python == sys.executable
    assert found.environment.setup == ()


def test_an_opened_plan_holds_scheduler_and_login_of_the_profile():
    one = workshop_plan.opened(replace(plan(Path("/x")), site="polaris"))
    assert one.scheduler == "pbs"
    assert one.login == site.load("polaris").login
    assert one.version


def test_learners_without_the_profile_request_the_job_settings_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = site.profile_of("ours")
    file.parent.mkdir(parents=True)
    file.write_text(
        '[job]\npartition = "gpu"\nqos = "day"\naccount = "mine"\ngpus_per_node = 2\n'
        'cpus_per_task = 4\nmemory_per_node = "16G"\n'
    )
    one = replace(plan(Path("/x")), way="ssh", site="ours", qos="course")
    text = workshop_plan.opened(one).to_toml()
    assert workshop_plan.opened(replace(one, way="node")).gpus == 0  # of this machine, not the site
    file.unlink()
    job = workshop_plan.parsed(Path("plan.toml"), text.encode()).of_site().job
    assert (job.partition, job.qos, job.account) == ("gpu", "course", "")
    assert (job.gpus_per_node, job.cpus_per_task, job.memory_per_node) == (2, 4, "16G")
