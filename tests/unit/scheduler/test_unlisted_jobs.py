"""A job that was just submitted and is not listed yet, for example if qstat's output is cached."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fake_scheduler import Elsewhere, FakeScheduler
from rankroom.errors import SchedulerError
from rankroom.scheduler import scheduler_client, status_cache
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Site

SITE = Site("mine")
LISTS = {"slurm": "squeue", "pbs": "qstat"}
OF_BEFORE = {
    "slurm": "exit 0",
    "pbs": "echo qstat: Unknown Job Id 101.pbs-01 >&2; exit 153",
}
WAITS = "is waiting in the queue (it is not listed yet)"


@pytest.fixture(params=["slurm", "pbs"])
def kind(request, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.1)
    return str(request.param)


def scheduler_of(kind: str) -> Scheduler:
    return Scheduler(replace(SITE, scheduler=kind), Elsewhere())  # type: ignore[arg-type]


def test_a_new_job_is_pending_until_the_scheduler_lists_it(fake: FakeScheduler, kind: str):
    scheduler = scheduler_of(kind)

    async def all_of_it() -> None:
        fake.instead(LISTS[kind], OF_BEFORE[kind])
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        for each in (scheduler, scheduler_of(kind)):  # another process may follow it
            status = await each.status(job)
            assert (status.state, status.words) == ("pending", WAITS)
        fake.again(LISTS[kind])
        while (status := await scheduler.status(job)).words == WAITS:
            await asyncio.sleep(0.02)
        assert status.state == "pending"
        fake.instead(LISTS[kind], OF_BEFORE[kind])
        while (await scheduler.status(job)).state == "pending":
            await asyncio.sleep(0.02)
        assert (await scheduler.status(job)).state == "gone"

    asyncio.run(asyncio.wait_for(all_of_it(), 120))


def test_a_job_unlisted_after_the_listing_delay_is_gone(fake: FakeScheduler, kind, monkeypatch):
    scheduler = scheduler_of(kind)

    async def all_of_it() -> None:
        fake.instead(LISTS[kind], OF_BEFORE[kind])
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        monkeypatch.setattr(scheduler_client, "LISTING_DELAY_S", 0.0)
        assert (await scheduler.status(job)).state == "gone"

    asyncio.run(all_of_it())


def test_a_job_that_was_cancelled_is_gone_though_it_was_never_listed(fake, kind: str):
    scheduler = scheduler_of(kind)

    async def all_of_it() -> None:
        fake.instead(LISTS[kind], OF_BEFORE[kind])
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        await scheduler.cancel(job)
        assert (await scheduler.status(job)).state == "gone"

    asyncio.run(all_of_it())


def test_an_unlisted_job_that_failed_at_once_has_ended(fake: FakeScheduler, monkeypatch):
    """squeue does not list jobs that are over, but scontrol still knows them."""
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.1)
    scheduler = scheduler_of("slurm")

    async def all_of_it() -> None:
        fake.instead("squeue", "exit 0")
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        for state, words in (("RUNNING", WAITS), ("FAILED", "has ended (failed)")):
            fake.instead("scontrol", f"echo JobId={job} JobState={state} Reason=None")
            assert (await scheduler.status(job)).words == words

    asyncio.run(all_of_it())


def test_a_qstat_cache_is_bypassed(fake: FakeScheduler):
    said = 'echo "bypassed: $QSCACHE_BYPASS"; exit 1'
    fake.instead("qstat", said)
    fake.instead("qselect", said)
    scheduler = scheduler_of("pbs")
    for asks in (scheduler.ask(["1"]), scheduler.find("x")):
        with pytest.raises(SchedulerError, match="bypassed: true") as caught:
            asyncio.run(asks)  # type: ignore[arg-type]
        assert "QSCACHE" not in str(caught.value).partition("\n")[0]  # the command, as shown


@pytest.mark.parametrize("then", [
    "exit 153", "echo qstat: cannot connect to server pbs-01 >&2; exit 153", "sleep 60",
    """echo '{ "timestamp": 1795176000, "Jobs": { "101'; exit 1""",
])  # fmt: skip
def test_an_answer_that_says_nothing_of_a_job_does_not_end_it(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, then: str
):
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.1)
    scheduler = scheduler_of("pbs")

    async def all_of_it() -> None:
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        assert (await scheduler.status(job)).state == "pending"
        monkeypatch.setattr(scheduler_client, "COMMAND_TIMEOUT_S", 2.0)
        # The reply is about another job, for which some process asked.
        fake.instead("qstat", f"echo qstat: Unknown Job Id 9{job}.pbs-01 >&2; {then}")
        with pytest.raises(SchedulerError):
            while (await scheduler.status(job)).state == "pending":  # by the earlier answer
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(all_of_it(), 60))
