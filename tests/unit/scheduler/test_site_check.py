"""`rankroom site` and `rankroom jobs`: a failed step says what failed, why, and what to do."""

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import rankroom
from fake_scheduler import DOWN, Elsewhere, FakeScheduler
from rankroom.cli import main
from rankroom.errors import SshError
from rankroom.horovod_build.features import Features
from rankroom.scheduler import probe, site, status_cache, test_job
from rankroom.scheduler.site import Container, Environment, Job, Site
from rankroom.scheduler.site_check import Check, Step, failed
from rankroom.ssh.host import LocalHost
from rankroom.system.polling import poll_until


def pretend(tmp_path: Path, **found: object) -> Environment:
    """Create a fake Python whose probe reports `found`."""
    about = {"python": "3.11.2", "executable": "/there/python", "host": "c1"} | found
    (tmp_path / "bin").mkdir(exist_ok=True)
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\nrankroom-probe {json.dumps(about)}\nEND\n")
    python.chmod(0o755)
    return Environment(python=str(python))


WORKS = {"rankroom": rankroom.__version__, "horovod": "0.28.1", "ours": True, "frameworks": []}


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Site:
    """A site with a fake Python: a real one would import the frameworks in every test."""
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.2)
    monkeypatch.setattr(test_job, "POLL_INTERVAL_S", 0.05)
    python = pretend(tmp_path, **WORKS)
    scratch = str(tmp_path / "scratch")
    return Site("mine", scratch=scratch, job=Job(partition="gpu"), environment=python)


def run(found: Site, job: bool = False, place: object = None) -> dict[str, Step]:
    told: list[str] = []

    async def all_of_it() -> list[Step]:
        check = Check(found, place or Elsewhere(), told.append)
        return [step async for step in check.steps(job)]

    return {step.name: step for step in asyncio.run(asyncio.wait_for(all_of_it(), 200))}


def states(steps: dict[str, Step]) -> dict[str, str]:
    return {name: step.state for name, step in steps.items() if name != "Horovod"}


ALL = ["login node", "scheduler", "scratch", "account and partition", "environment",
       "Python with Rankroom"]  # fmt: skip


def test_every_step_succeeds_for_a_site_that_works(fake: FakeScheduler, here: Site):
    # Uses this Python with this package, whatever login shells set.
    setup = (f"export PYTHONPATH={Path(rankroom.__file__).parents[1]}",)
    steps = run(replace(here, environment=Environment(setup=setup, python=sys.executable)))
    assert states(steps) == dict.fromkeys(ALL, "ok")
    assert steps["Horovod"].state in ("ok", "warned")
    assert "to start at" in steps["account and partition"].words
    assert rankroom.__version__ in steps["Python with Rankroom"].words
    assert not failed(list(steps.values()))


def test_a_pbs_site_is_checked_except_for_account_and_partition(fake: FakeScheduler, here: Site):
    steps = run(replace(here, scheduler="pbs"))
    assert states(steps) == dict.fromkeys(ALL, "ok") | {"account and partition": "skipped"}
    assert "pbs_version = 2022.1.1 answers" in steps["scheduler"].words


@pytest.mark.thorough
def test_the_local_site_is_checked_without_a_scheduler(fake: FakeScheduler):
    steps = run(site.load("local"), place=LocalHost())
    assert states(steps)["Python with Rankroom"] == "ok"
    assert states(steps)["scheduler"] == "skipped"


class Unreachable(Elsewhere):
    async def open(self) -> None:
        raise SshError("cannot reach login.example.org: it does not respond", "unreachable")


def test_an_unreachable_login_node_fails_and_skips_all_other_steps(fake: FakeScheduler, here: Site):
    steps = run(here, job=True, place=Unreachable())
    assert steps.pop("login node") == Step(
        "login node", "failed", "cannot reach login.example.org: it does not respond"
    )
    assert {step.state for step in steps.values()} == {"skipped"}
    assert not fake.calls("sbatch")


def test_slurm_being_down_does_not_skip_steps_that_do_not_need_it(fake: FakeScheduler, here: Site):
    fake.fails("squeue", DOWN)
    steps = run(here)
    assert steps["scheduler"].state == "failed"
    assert "down or being restarted" in steps["scheduler"].words
    assert steps["account and partition"].words == 'skipped, because the step "scheduler" failed'
    # Steps that do not need the scheduler still run.
    assert steps["Python with Rankroom"].state == "ok"


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        # `sbatch --test-only` reports partition gpu, whatever the default is.
        ({"partition": "", "time": "02:00:00"}, "ok"),
        ({"partition": "short"}, "failed"),
        # A QoS may lift the partition's limits.
        ({"partition": "short", "qos": "long"}, "warned"),
    ],
)
def test_a_qos_turns_a_limit_into_a_warning(fake: FakeScheduler, here: Site, asked, state: str):
    fake.instead("sinfo", "echo 'gpu|1-00:00:00|4'; echo 'short*|5:00|1'")
    step = run(here.asking(**asked))["account and partition"]
    assert step.state == state
    assert ("the partition short gives 5:00 at most" in step.words) == (state != "ok")


def test_a_refused_account_is_reported_with_its_remedy(fake: FakeScheduler, here: Site):
    said = "allocation failure: Invalid account or account/partition combination specified"
    fake.instead(
        "sbatch",
        f'case $1 in --version) echo slurm 20.11.9; exit;; esac\necho "{said}" >&2; exit 1',
    )
    steps = run(here)
    assert steps["account and partition"].state == "failed"
    words = steps["account and partition"].words
    assert said in words
    assert "`sbatch --test-only` on login.example.org failed (status 1)" in words
    assert f"Set `account` in [job] of {site.own_folder()}/mine.toml" in words


def test_an_unwritable_scratch_fails_its_check(fake: FakeScheduler, here: Site, tmp_path: Path):
    (tmp_path / "file").touch()
    steps = run(replace(here, scratch=f"{tmp_path}/file/x"), job=True)
    assert steps["scratch"].state == "failed"
    assert "set it to a folder that you may write to" in steps["scratch"].words
    assert "that step failed" in steps["test job"].words


def test_a_missing_module_fails_the_environment_step(fake: FakeScheduler, here: Site):
    load = 'module() { echo "Lmod has detected the following error: $2 is unknown"; return 1; }'
    environment = replace(here.environment, setup=(load, "module load cudnn/9", "echo never"))
    steps = run(replace(here, environment=environment))
    words = steps["environment"].words
    assert words.startswith("`module load cudnn/9` on login.example.org failed (status 1):\nLmod")
    assert "Correct [environment]" in words
    assert "never" not in words.splitlines()
    assert steps["Python with Rankroom"].state == "skipped"


def test_a_module_error_is_detected_although_the_exit_status_is_0(fake: FakeScheduler, here: Site):
    load = 'module() { echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '
    environment = replace(here.environment, setup=(f"{load}'$2'\"; }}", "module load x"))
    steps = run(replace(here, environment=environment))
    assert steps["environment"].state == "failed"
    assert "Unable to locate a modulefile for 'x'" in steps["environment"].words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"error": "ModuleNotFoundError: x"},
            "/there/python on c1 has no Rankroom (ModuleNotFoundError: x). Copy the wheel that "
            "`make dist` made here, and install it there:\n"
            "  /there/python -m pip install rankroom-OURS-py3-none-any.whl",
        ),
        ({"rankroom": "0.0.9"}, "Rankroom is 0.0.9 for /there/python on c1, and OURS here"),
        ({"python": "3.6.8"}, "Rankroom needs 3.10 or newer"),
    ],
)
def test_an_unsuitable_python_fails_its_check(fake, here: Site, tmp_path: Path, found, words: str):
    steps = run(replace(here, environment=pretend(tmp_path, **found)))
    assert steps["Python with Rankroom"].state == "failed"
    said = steps["Python with Rankroom"].words
    assert words.replace("OURS", rankroom.__version__) in said


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        ({}, "warned", "`/there/python -m rankroom horovod build`"),
        (
            {"horovod": "0.28.1", "ours": False, "frameworks": ["torch"]},
            "warned",
            "Horovod 0.28.1 for torch, not built by Rankroom",
        ),
        (
            {"horovod": "0.28.1", "ours": True, "frameworks": ["torch"], "horovod_error": "E: x"},
            "failed",
            "cannot be imported: E: x",
        ),
        (
            {"horovod": "0.28.1", "ours": True, "frameworks": ["tensorflow", "torch"]},
            "ok",
            "Horovod 0.28.1 for tensorflow, torch",
        ),
        (
            {"horovod": "0.28.1", "ours": True, "frameworks": ["torch"], "nccl": False},
            "warned",
            "Horovod 0.28.1 for torch, built for the CPU, and jobs have GPUs",
        ),
    ],
)
def test_horovod_state_is_reported(fake, here: Site, tmp_path: Path, found, state: str, words: str):
    found = found | {"rankroom": rankroom.__version__}
    site = replace(here, environment=pretend(tmp_path, **found))
    if "nccl" in found:
        assert run(site)["Horovod"].state == "ok"  # jobs without GPUs need no NCCL
        site = replace(site, job=replace(site.job, gpus_per_node=2))
    steps = run(site)
    assert steps["Horovod"].state == state
    assert words in steps["Horovod"].words


def test_the_probe_reports_horovods_version_and_nccl_support(monkeypatch: pytest.MonkeyPatch):
    here = Features("0.28.1", Path("/there"), {"torch": "2.13.0"})
    monkeypatch.setattr("rankroom.horovod_build.features.features", lambda: here)
    found = probe.look()
    assert found["horovod"] == "0.28.1" and "horovod_error" not in found
    assert isinstance(found["nccl"], bool)


def test_a_missing_python_is_reported(fake, here: Site):
    steps = run(replace(here, environment=Environment(python="python9")))
    assert "`python9 -c …` on login" in steps["Python with Rankroom"].words
    assert "No Python answers there" in steps["Python with Rankroom"].words


def test_the_python_inside_a_container_is_probed(fake, here: Site, tmp_path: Path):
    runtime = tmp_path / "bin" / "ch-run"
    skip = 'while [ "$1" != -- ]; do shift; done; shift'
    runtime.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n{skip}\nexec "$@"\n')
    runtime.chmod(0o755)
    setup = (f"export PATH={tmp_path}/bin:$PATH",)
    container = Container("charliecloud", "/images/x", python=here.environment.python)
    environment = replace(here.environment, setup=setup)
    steps = run(replace(here, container=container, environment=environment))
    assert steps["Python with Rankroom"].state == "ok"
    assert steps["container"].state == "ok"
    assert "/images/x --" in (tmp_path / "called").read_text()


def test_a_missing_container_runtime_is_reported(fake, here: Site):
    steps = run(replace(here, container=Container("shifter", "img", python="python3")))
    assert steps["Python with Rankroom"].state == "ok"
    assert "`shifter --image=img python3 -c …`" in steps["container"].words
    assert steps["Horovod"].state == "skipped"


# --- the test job

AT_ONCE = r"""
job=77; cat >"$FAKE_SCHEDULER/script"
log=$(sed -n 's/^#SBATCH --output=//p' "$FAKE_SCHEDULER/script" | sed "s/%x-%j/check-$job/")
bash "$FAKE_SCHEDULER/script" >"$log" 2>&1
echo $job
"""


def submitting(fake: FakeScheduler, script: str) -> None:
    fake.instead("sbatch", f'case $1 in --version) echo slurm 23.02.6; exit;; '
                           f'--test-only) exit;; esac\n{script}')  # fmt: skip
    # The job is over before squeue could list it.
    fake.instead("scontrol", "echo JobId=77 JobState=COMPLETED Reason=None")


def test_a_test_job_that_works_leaves_no_files(fake: FakeScheduler, here: Site, tmp_path: Path):
    submitting(fake, AT_ONCE)
    steps = run(here, job=True)
    assert steps["test job"].state in ("ok", "warned"), steps["test job"]
    assert steps["test job"].words.startswith("job 77 ran on")
    script = (fake.folder / "script").read_text()
    assert "#SBATCH --time=00:01:00" in script
    assert "#SBATCH --signal" not in script
    assert "#SBATCH --nodes=1" in script
    assert [file.name for file in (tmp_path / "scratch").iterdir()] == []


def test_a_test_job_reports_a_scratch_that_its_node_does_not_see(fake: FakeScheduler, here: Site):
    submitting(fake, "cat >/dev/null; echo 77")
    steps = run(here, job=True)
    assert "the compute node does not see" in steps["test job"].words
    assert "or the job was ended before it wrote a line" in steps["test job"].words
    assert "Set `scratch` in" in steps["test job"].words


def test_a_failed_test_job_names_its_empty_log(fake: FakeScheduler, here: Site, tmp_path: Path):
    submitting(fake, AT_ONCE.replace("bash ", "export LAB=no; bash "))
    environment = replace(here.environment, setup=(*here.environment.setup, '[ -z "$LAB" ]'))
    steps = run(replace(here, environment=environment), job=True)
    assert "its log in" in steps["test job"].words
    assert "is missing or empty" in steps["test job"].words
    assert [file.name for file in (tmp_path / "scratch").iterdir()] == []


def test_a_test_job_that_will_never_start_is_cancelled(fake: FakeScheduler, here: Site):
    submitting(fake, "cat >/dev/null; echo 77")
    fake.set("77", "77|PENDING|PartitionTimeLimit|N/A||N/A|check")
    steps = run(here, job=True)
    assert "as submitted, it will never start" in steps["test job"].words
    assert len(fake.calls("scancel")) == 1


# --- the commands


def cli(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def own(fake: FakeScheduler, tmp_path: Path, monkeypatch) -> Path:
    """A user's profile for the fake Slurm on this machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.2)
    folder = site.own_folder()
    folder.mkdir(parents=True)
    python = pretend(tmp_path, **WORKS).python
    (folder / "mine.toml").write_text(
        f'description = "Mine"\nscratch = "{tmp_path}/scratch"\n[job]\npartition = "gpu"\n'
        f'[environment]\npython = "{python}"\n'
    )
    return folder / "mine.toml"


def test_sites_are_listed_and_shown(own: Path):
    assert "mine            Mine  (yours)" in cli("site", "list")
    own.with_name("bad.toml").write_text("[job]\npartion = 1\n")
    assert "✗" in cli("site", "list")
    shown = cli("site", "show", "mine")
    assert shown.startswith(f"# {own}\n")
    assert '[job]\npartition = "gpu"' in shown
    assert "#SBATCH --partition=gpu" in cli("site", "show", "mine", "--script")
    assert "there is no site 'x'" in cli("site", "show", "x", code=1)


def test_site_show_prints_a_profile_that_loads_as_the_same_site(own: Path):
    for name in site.files():
        own.with_name("again.toml").write_text(cli("site", "show", name))
        assert replace(site.load("again"), name=name) == site.load(name)


def test_a_check_says_what_works(own: Path):
    said = cli("site", "check", "mine")
    assert "✓ login node: this machine" in said
    assert "✓ scheduler: slurm 22.05.8 answers" in said


def test_a_check_that_fails_exits_with_status_1(own: Path, fake: FakeScheduler):
    fake.fails("squeue", DOWN)
    said = cli("site", "check", "mine", code=1)
    assert "✗ scheduler: mine: `squeue" in said
    assert f"    {DOWN}" in said


def submit(name: str) -> str:
    from rankroom.scheduler.scheduler_client import Scheduler

    scheduler = Scheduler(site.load("mine"), LocalHost())
    return asyncio.run(scheduler.submit(scheduler.script(name, "/tmp", ["true"])))


def test_jobs_are_listed_with_their_state(own: Path, fake: FakeScheduler):
    assert cli("jobs") == "no jobs\n"
    first, second = submit("lab"), submit("tiger")
    fake.set(first, f"{first}|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|lab")
    lines = cli("jobs").splitlines()
    assert [line.split()[0] for line in lines] == [second, first]
    assert "tiger" in lines[0] and "is waiting in the queue (Priority" in lines[0]
    assert lines[1].endswith("runs on c1")
    assert cli("jobs", "--cancel", second) == f"job {second} at mine is cancelled\n"
    assert first not in cli("jobs", "--site", "perlmutter")
    while second in cli("jobs"):
        pass
    assert second in cli("jobs", "--all")
    assert "was not submitted from here" in cli("jobs", "--cancel", "1", code=1)


@pytest.mark.parametrize("command", [["jobs"], ["site", "check", "mine"]])
def test_a_login_node_that_is_this_machine_is_not_reached_by_ssh(
    own: Path, fake: FakeScheduler, monkeypatch, command
):
    submit("lab")
    own.write_text('login = "ada@127.0.0.1"\n' + own.read_text())
    monkeypatch.setenv("RANKROOM_SSH", "false")
    said = CliRunner().invoke(main, command).output
    assert "✓ login node: this machine" in said if "check" in command else "(Priority" in said


def test_jobs_of_a_site_that_does_not_answer_are_listed_as_unknown(own: Path, fake: FakeScheduler):
    job = submit("lab")
    fake.fails("squeue", DOWN)
    said = cli("jobs")
    assert f"{job}  mine" in said and "unknown" in said
    assert DOWN in said


def test_a_job_is_forgotten_a_week_after_its_end_was_noticed(
    own: Path, fake: FakeScheduler, tmp_path
):
    job = submit("lab")
    [file] = (tmp_path / "home" / "jobs").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600

    def kept(**more: float) -> float:
        file.write_text(json.dumps(json.loads(file.read_text()) | more))
        assert job in cli("jobs", "--all")
        return float(json.loads(file.read_text())["over"])

    # However long ago it was submitted, it is not over.
    assert kept(at=1.0) == 0
    line = (fake.folder / "jobs" / job).read_text()
    fake.cancelled(job)
    before = time.time()
    assert poll_until(lambda: kept() > 0, 120, 0.2)
    assert before <= kept() <= time.time()
    fake.set(job, line.strip())  # it was only missing from one list
    assert poll_until(lambda: kept() == 0, 120, 0.2)
    fake.cancelled(job)
    assert poll_until(lambda: kept() > 0, 120, 0.2)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"over": time.time() - 8 * 86400}))
    assert cli("jobs", "--all") == "no jobs\n"
    assert not file.exists()


def test_a_job_is_queried_from_where_it_was_submitted(own: Path, fake: FakeScheduler, monkeypatch):
    """As with `--here`: on a login node, although the profile's login host is another machine."""
    submit("lab")
    own.write_text('login = "ada@login.example.org"\n' + own.read_text())
    monkeypatch.setenv("RANKROOM_SSH", "false")
    assert "(Priority" in cli("jobs")
