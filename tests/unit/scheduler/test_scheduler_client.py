"""Submit, query and cancel with fake commands: the queries, their rate, and the errors shown."""

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from checkout import SUPPORT
from fake_scheduler import DOWN, FAKES, Elsewhere, FakeScheduler
from rankroom.errors import SchedulerError, SshError, UsageError
from rankroom.scheduler import scheduler_client, slurm, status_cache, submitted_jobs
from rankroom.scheduler.remedies import remedy
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Job, Site, own_folder
from rankroom.ssh.host import LocalHost
from rankroom.system.commands import Completed

SITE = Site("mine", job=Job(account="a", partition="gpu"))
PBS = replace(SITE, scheduler="pbs")
WAITS = "{job}|PENDING|Resources|N/A||N/A|x"
RUNS = "{job}|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"
PATIENT_S = 600  # slow commands lengthen the interval between queries


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch):
    """Shorten the interval between two queries from 5 s to 0.5 s."""
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.5)


@pytest.fixture(params=[SITE, PBS], ids=["slurm", "pbs"])
def scheduler(request, fake) -> Scheduler:
    return Scheduler(request.param, Elsewhere())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch):
    """Fake commands may be slow on a busy machine."""
    monkeypatch.setattr(scheduler_client, "COMMAND_TIMEOUT_S", 600.0)


def run(what):
    return asyncio.run(what)


def test_a_job_is_submitted_queried_and_cancelled(scheduler: Scheduler, fake: FakeScheduler, quick):
    async def all_of_it() -> None:
        text = scheduler.script("rankroom-x", "/tmp", ["true"])
        job = await scheduler.submit(text)
        assert fake.script(job) == text
        status = (await scheduler.ask([job]))[job]
        assert (status.state, status.name) == ("pending", "rankroom-x")
        await scheduler.cancel(job)
        while (await scheduler.ask([job]))[job].state != "gone":
            await asyncio.sleep(0.05)
        await scheduler.cancel(job)  # repeating it is harmless

    run(asyncio.wait_for(all_of_it(), PATIENT_S))


def test_one_unknown_job_does_not_hide_the_others(scheduler: Scheduler, fake: FakeScheduler, quick):
    async def all_of_it() -> None:
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        found = await scheduler.ask(["99", job])
        assert (found["99"].state, found[job].state) == ("gone", "pending")

    run(all_of_it())


def test_a_status_cached_before_its_submission_does_not_make_a_job_gone(fake: FakeScheduler, quick):
    scheduler = Scheduler(SITE, Elsewhere())

    async def all_of_it() -> None:
        await scheduler.ask(["1"])
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        assert (await scheduler.ask([job]))[job].state == "pending"

    run(all_of_it())
    assert len(fake.calls("squeue")) == 2


ASKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from fake_scheduler import Elsewhere
from rankroom.scheduler import scheduler_client
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Site
scheduler_client.COMMAND_TIMEOUT_S = 600.0
print(asyncio.run(Scheduler(Site("mine"), Elsewhere()).ask(["7"]))["7"].state)
"""


def test_twenty_processes_together_make_one_query_per_interval(fake: FakeScheduler):
    fake.set("7", WAITS.format(job=7))
    argv = [sys.executable, "-c", ASKER, str(SUPPORT)]
    begun = time.time()
    all_ = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(20)]
    assert [process.communicate(timeout=120)[0] for process in all_] == ["pending\n"] * 20
    calls = fake.calls("squeue")
    # At most one query per interval, however long the processes took in all.
    assert 1 <= len(calls) <= 1 + (time.time() - begun) / status_cache.MIN_QUERY_INTERVAL_S
    # A call is stamped some time after its query began, at most the query's duration later. The
    # interval is at least INTERVAL_PER_QUERY_TIME such durations, so a gap loses no larger share.
    gaps = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert all(
        gap > status_cache.MIN_QUERY_INTERVAL_S * (1 - 1 / status_cache.INTERVAL_PER_QUERY_TIME)
        for gap in gaps
    )


def test_constant_polling_makes_at_most_one_query_per_interval(fake: FakeScheduler, quick):
    fake.set("7", WAITS.format(job=7))
    scheduler = Scheduler(SITE, Elsewhere())

    async def ask() -> float:
        begun = time.time()
        # If a query is slow, the next one comes later than after two seconds.
        while time.time() < begun + 2 or len(fake.calls("squeue")) < 2:
            await scheduler.ask(["7"])
            await asyncio.sleep(0.001)
        return time.time() - begun

    took = run(asyncio.wait_for(ask(), PATIENT_S))
    assert 2 <= len(fake.calls("squeue")) <= 1 + took / 0.5


def test_a_state_change_is_seen_at_the_next_query(fake: FakeScheduler, quick):
    fake.set("7", WAITS.format(job=7))
    scheduler = Scheduler(SITE, Elsewhere())

    async def all_of_it() -> None:
        assert (await scheduler.ask(["7"]))["7"].state == "pending"
        fake.set("7", RUNS.format(job=7))
        while (status := (await scheduler.ask(["7"]))["7"]).state == "pending":
            await asyncio.sleep(0.05)
        assert status.words == "runs on c1"

    run(asyncio.wait_for(all_of_it(), PATIENT_S))


@pytest.mark.thorough
def test_a_scheduler_that_is_down_is_queried_at_growing_intervals(fake: FakeScheduler, quick):
    fake.fails("squeue", DOWN)
    scheduler = Scheduler(SITE, Elsewhere())

    async def all_of_it() -> None:
        errors = set()
        while len(fake.calls("squeue")) < 4:
            with pytest.raises(SchedulerError) as caught:
                await scheduler.ask(["7"])
            errors.add(str(caught.value))
            await asyncio.sleep(0.02)
        [error] = errors
        assert "squeue --noheader --me" in error
        assert f"on login.example.org failed (status 1):\n{DOWN}\n" in error
        assert "down or being restarted" in error
        fake.again("squeue")
        fake.set("7", WAITS.format(job=7))
        while True:
            try:
                assert (await scheduler.ask(["7"]))["7"].state == "pending"
                return
            except SchedulerError:
                await asyncio.sleep(0.1)

    run(asyncio.wait_for(all_of_it(), PATIENT_S))
    first, second, third, *_ = fake.calls("squeue")
    assert third - second > 1.5 * 0.5 < second - first


class Cut(Elsewhere):
    """A login node that can be cut off."""

    cut = False

    async def run(self, *words, **how):
        if self.cut:
            raise SshError("the link is lost", "lost")
        return await super().run(*words, **how)


def test_a_lost_connection_is_not_counted_as_a_scheduler_failure(fake: FakeScheduler, quick):
    fake.set("7", WAITS.format(job=7))
    place = Cut()
    place.cut = True
    scheduler = Scheduler(SITE, place)

    async def all_of_it() -> None:
        for _ in range(6):
            with pytest.raises(SshError):
                await scheduler.ask(["7"])
        place.cut = False
        assert (await scheduler.ask(["7"]))["7"].state == "pending"
        [file] = (scheduler._asked.file.parent).glob("*.json")
        assert json.loads(file.read_text())["failures"] == 0

    run(asyncio.wait_for(all_of_it(), PATIENT_S))


def test_no_old_answer_is_returned_after_a_query_that_could_not_be_made(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
):
    """Neither in this process nor in the next one, which need not ask again yet."""

    fake.set("7", WAITS.format(job=7))
    place = Cut()

    async def all_of_it() -> None:
        monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.0)
        monkeypatch.setattr(status_cache, "INTERVAL_PER_QUERY_TIME", 0)
        assert (await Scheduler(SITE, place).ask(["7"]))["7"].state == "pending"
        place.cut = True
        monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.5)
        for _ in range(3):
            with pytest.raises(SshError):
                await Scheduler(SITE, place).ask(["7"])

    run(asyncio.wait_for(all_of_it(), PATIENT_S))


def test_a_hanging_query_does_not_block_the_event_loop(fake: FakeScheduler, quick, monkeypatch):
    fake.instead("squeue", "exec sleep 60")
    scheduler = Scheduler(SITE, Elsewhere())

    async def all_of_it() -> None:
        asking = asyncio.ensure_future(scheduler.ask(["7"]))
        while not fake.calls("squeue"):
            await asyncio.sleep(0.01)
        for _ in range(11):
            await asyncio.sleep(0.01)
            assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        monkeypatch.setattr(scheduler_client, "COMMAND_TIMEOUT_S", 1.0)
        with pytest.raises(SchedulerError, match="timed out"):
            await scheduler.ask(["7"])

    run(all_of_it())


def test_a_process_killed_during_a_query_does_not_block_the_next_query(fake: FakeScheduler, quick):
    fake.instead("squeue", "exec sleep 60")
    argv = [sys.executable, "-c", ASKER, str(SUPPORT)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    while not fake.calls("squeue"):
        time.sleep(0.02)
    killed = time.time()
    process.kill()
    process.communicate()
    fake.again("squeue")
    fake.set("7", WAITS.format(job=7))
    # The lock was released when its process died.
    found = run(asyncio.wait_for(Scheduler(SITE, Elsewhere()).ask(["7"]), PATIENT_S))
    assert found["7"].state == "pending"
    assert len(fake.calls("squeue")) == 2
    assert fake.calls("squeue")[1] > killed


def test_a_damaged_cache_file_is_replaced_by_a_new_query(fake: FakeScheduler, tmp_path: Path):
    scheduler = Scheduler(SITE, Elsewhere())
    fake.set("7", WAITS.format(job=7))
    run(scheduler.ask(["7"]))
    [file] = (tmp_path / "home" / "asked").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text('{"at": ')
    assert run(scheduler.ask(["7"]))["7"].state == "pending"


def test_a_full_disk_prevents_neither_queries_nor_submissions(fake: FakeScheduler, tmp_path: Path):
    # Simulates a full disk: a file is in the place of a folder.
    (tmp_path / "home").touch()
    fake.set("7", WAITS.format(job=7))
    scheduler = Scheduler(SITE, Elsewhere())

    async def all_of_it() -> None:
        for _ in range(20):
            assert (await scheduler.ask(["7"]))["7"].state == "pending"
        assert (await scheduler.submit(scheduler.script("x", "/tmp", []))).isdigit()

    begun = time.time()
    run(all_of_it())
    assert (
        len(fake.calls("squeue")) <= 1 + (time.time() - begun) / status_cache.MIN_QUERY_INTERVAL_S
    )


def test_a_jobs_folder_that_others_may_write_to_does_not_undo_a_submission(home: Path):
    submitted_jobs.folder().mkdir(parents=True, mode=0o700)
    submitted_jobs.folder().chmod(0o770)
    submitted_jobs.Submitted("mine", "", "7", "train", 1.0).write()  # raises nothing
    assert list(submitted_jobs.folder().iterdir()) == []


def test_a_clock_set_back_does_not_delay_the_next_query(fake: FakeScheduler, monkeypatch):
    scheduler = Scheduler(SITE, Elsewhere())
    fake.set("7", WAITS.format(job=7))
    run(scheduler.ask(["7"]))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    run(scheduler.ask(["7"]))
    assert len(fake.calls("squeue")) == 2


def test_a_clock_set_back_during_a_query_does_not_delay_its_answer(fake, quick, monkeypatch):
    scheduler = Scheduler(SITE, Elsewhere())
    question, now = scheduler._query, time.time

    async def set_back(ids: list[str]) -> tuple[str, str]:
        monkeypatch.setattr(time, "time", lambda: now() - 3600)
        return await question(ids)

    async def all_of_it() -> None:
        await scheduler.ask(["7"])
        monkeypatch.setattr(scheduler, "_query", set_back)
        assert (await scheduler.ask(["7"]))["7"].state == "gone"

    run(asyncio.wait_for(all_of_it(), 30))


REFUSALS = {
    "account": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition "
        "combination specified",
        "Set `account` in [job] of {own}/mine.toml (it is: a).",
    ),
    "partition": (
        "sbatch",
        "sbatch: error: invalid partition specified: gpuu\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
        "Set `partition` in [job] of {own}/mine.toml (it is: gpu).",
    ),
    "qos": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        "Set `qos` in [job]",
    ),
    "over the limit": (
        "sbatch",
        "sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: "
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Such a job can never start: ask for less (1 node(s) for 01:00:00)",
    ),
    "too many jobs": (
        "sbatch",
        "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: "
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "as many jobs in the queue as you may",
    ),
    "too many jobs of others": (
        "sbatch",
        "sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: "
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "The account (a) or QoS (none: the default) has as many jobs in the queue as it may",
    ),
    "constraint": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Invalid feature specification",
        "Set `constraint` in [job]",
    ),
    "nodes": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "No node satisfies the request",
    ),
    "group": (
        "sbatch",
        "sbatch: error: Batch job submission failed: User's group not permitted to use this "
        "partition",
        "You may not use this partition",
    ),
    "down": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect "
        "failure)",
        "down or being restarted",
    ),
    "quota": (
        "sbatch",
        "slurmstepd: error: write: Disk quota exceeded",
        "`rankroom runs prune`",
    ),
    "munge": (
        "sbatch",
        "sbatch: error: Batch job submission failed: Protocol authentication error",
        "does not accept you from this machine",
    ),
    "what no one has seen": ("sbatch", "sbatch: error: lua: no.", "take the scheduler's words"),
    "pbs queue": ("qsub", "qsub: Unknown queue", "Set `partition` in [job]"),
    "pbs limits": (
        "qsub",
        "qsub: Job violates queue and/or server resource limits",
        "Such a job can never start",
    ),
    "pbs down": (
        "qsub",
        "Connection refused\nqsub: cannot connect to server pbs-01 (errno=15010)",
        "down or being restarted",
    ),
    "torque": ("qsub", "qstat: invalid option -- 'F'", "OpenPBS or PBS Professional is required"),
    "pbs user": ("qsub", "qsub: Unauthorized Request", "You may not use this partition or queue"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_submission_reports_command_output_and_remedy(fake, case: str):
    command, said, remedy = REFUSALS[case]
    fake.fails(command, said)
    scheduler = Scheduler(PBS if command == "qsub" else SITE, Elsewhere())
    with pytest.raises(SchedulerError) as caught:
        run(scheduler.submit(scheduler.script("x", "/tmp", [])))
    shown = "sbatch --parsable" if command == "sbatch" else "qsub"
    assert str(caught.value).startswith(f"mine: `{shown}` on login.example.org failed (status 1):")
    assert said in str(caught.value)
    assert remedy.format(own=own_folder()) in str(caught.value)


def test_a_scheduler_command_without_execute_permission_is_reported(monkeypatch, tmp_path: Path):
    (tmp_path / "qsub").touch(0o644)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for place in (Elsewhere(), LocalHost()):
        with pytest.raises(
            SchedulerError, match="`qsub` is there, but you are not permitted to run it"
        ):
            run(Scheduler(PBS, place).submit("#!/bin/sh\n"))


def test_missing_scheduler_commands_are_reported(monkeypatch, tmp_path: Path):
    # PBS, as Slurm may be installed on this machine.
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    scheduler = Scheduler(PBS, Elsewhere())
    with pytest.raises(SchedulerError, match="There is no `qsub` there, not even in a login shell"):
        run(scheduler.submit("#!/bin/sh\n"))
    with pytest.raises(SchedulerError, match="There is no `qstat` there"):
        run(scheduler.ask(["1"]))


class Csh(Elsewhere):
    """A login node whose shell, csh, exits with status 1 for a missing command."""

    async def run(self, argv, **how):
        if shutil.which(argv[0]) is None:
            return Completed(tuple(argv), 1, f"{argv[0]}: Command not found.\n")
        return await super().run(argv, **how)


@pytest.mark.parametrize("place", [Elsewhere(), Csh()], ids=["sh", "csh"])
def test_commands_only_on_a_login_shells_path_are_found(fake, monkeypatch, tmp_path: Path, place):
    profile = tmp_path / "user"
    profile.mkdir()
    (profile / ".bash_profile").write_text(
        f'echo "Welcome to the machine {{1}}"; PATH={FAKES}/pbs:$PATH\n'
    )
    monkeypatch.setenv("HOME", str(profile))
    without = [each for each in os.environ["PATH"].split(":") if str(FAKES) not in each]
    monkeypatch.setenv("PATH", ":".join(without))
    scheduler = Scheduler(PBS, place)

    async def all_of_it() -> None:
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        assert (await scheduler.ask([job]))[job].state == "pending"
        await scheduler.cancel(job)

    run(all_of_it())


def test_the_scratch_folder_is_created_and_private(fake, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    for scratch, made in (("~/room", "room"), ("$SCRATCH/a b", "scratch/a b")):
        scheduler = Scheduler(replace(SITE, scratch=scratch), Elsewhere())
        assert run(scheduler.folder()) == str(tmp_path / made)
        assert (tmp_path / made).stat().st_mode & 0o777 == 0o700


def test_scratch_may_use_variables_that_a_login_shell_sets(fake, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SCRATCH", raising=False)
    scheduler = Scheduler(replace(SITE, scratch="$SCRATCH/room"), Elsewhere())
    with pytest.raises(
        SchedulerError, match=r"(?s)SCRATCH: unbound.*be set in a login shell there"
    ):
        run(scheduler.folder())
    (tmp_path / ".bash_profile").write_text(f"printf Hello; export SCRATCH={tmp_path}/big\n")
    assert run(scheduler.folder()) == f"{tmp_path}/big/room"


def test_a_scratch_folder_that_cannot_be_created_is_reported(fake, tmp_path: Path):
    (tmp_path / "file").touch()
    scheduler = Scheduler(replace(SITE, scratch=str(tmp_path / "file" / "x")), Elsewhere())
    with pytest.raises(SchedulerError, match=r"(?s)Not a directory.*that you may write to"):
        run(scheduler.folder())


def test_a_site_without_a_scheduler_is_refused():
    with pytest.raises(UsageError, match="the site here has no scheduler"):
        Scheduler(Site("here", scheduler="none"), Elsewhere())


def test_a_users_sbatch_variables_do_not_override_the_jobs_options(fake, monkeypatch, tmp_path):
    """For sbatch, they take precedence over the script's #SBATCH lines."""
    given = {
        "SBATCH_ACCOUNT": "def-prof", "SBATCH_PARTITION": "slow", "SBATCH_REQUEUE": "1",
        "SBATCH_JOB_NAME": "x", "SBATCH_TIMELIMIT": "1:00", "SBATCH_MEM_PER_NODE": "1G",
        "SBATCH_ARRAY_INX": "9",
    }  # fmt: skip
    kept = {"SBATCH_QOS": "normal", "SBATCH_EXPORT": "NONE"}  # options that the job does not set
    for name, value in (given | kept).items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen"
    fake.instead("sbatch", f"env | grep ^SBATCH_ > {seen}; cat > /dev/null; echo 7")
    more = ("-A rrg", "--array=0-3")
    site = Site("mine", job=Job(partition="gpu", memory_per_cpu="4G", extra=more))
    scheduler = Scheduler(site, LocalHost())
    for send in (
        lambda: scheduler.submit(scheduler.script("rankroom-x", "/tmp", ["true"])),
        lambda: scheduler.accepted("/tmp"),
    ):
        run(send())
        assert dict(line.split("=", 1) for line in seen.read_text().splitlines()) == kept
    fake.fails("sbatch", "sbatch: error: Invalid account or account/partition combination", 1)
    with pytest.raises(SchedulerError, match=r"`sbatch --parsable`.*\n(.*\n)*.*it is: none"):
        run(scheduler.submit(scheduler.script("rankroom-x", "/tmp", ["true"])))


def test_a_missing_squeue_is_named_although_env_runs_it():
    done = Completed((*slurm.ENV, "squeue", "--me"), 127, "bash: squeue: command not found\n")
    assert remedy(SITE, done).startswith("There is no `squeue` there")
