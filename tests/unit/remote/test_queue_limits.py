"""When a pending job is given up: Slurm may state a limit for a while after it has passed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fake_scheduler import Elsewhere, FakeScheduler
from rankroom.errors import StartError
from rankroom.record.cluster_file import Remote
from rankroom.remote import queue as module
from rankroom.remote.queue import Queue
from rankroom.scheduler import pbs, scheduler_client, slurm, status_cache
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Job, Site
from rankroom.ssh.host import LocalHost

ALONE = "7|PENDING|QOSMaxGRESPerUser|N/A|(null)|N/A|x"
RUNS = "7|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"
NEVER_NOW = (
    '{"timestamp": 1, "Jobs": {"7.pbs": {"job_state": "Q", "comment": "Can Never Run: Not enough '
    'total nodes available"}}}'
)
RUNS_AT_LAST = '{"timestamp": 1, "Jobs": {"7.pbs": {"job_state": "R", "exec_host": "c1/0"}}}'
OTHER = "\n8|RUNNING|None|2026-11-20T10:00:00|c1|2026-11-20T11:00:00|x"


def follow(lines: list[str], monkeypatch: pytest.MonkeyPatch, kind: ModuleType = slurm) -> str:
    """Follow job 7 by `lines`, an answer every 30 s, until it is gone; return the words before."""
    now = 0.0

    async def status(job: str) -> JobStatus:
        nonlocal now
        now += 30
        known = kind.listed(lines.pop(0)) if lines else {}
        return replace(known.get(job) or JobStatus(job, "gone"), at=now)

    async def followed() -> str:
        words = []
        queue: Any = Queue(Site("x"), LocalHost(), Remote("x", job="7"),
                           lambda state, text: words.append(text))  # fmt: skip
        queue._scheduler.status = status
        await queue.follow()
        return words[-2]

    monkeypatch.setattr(module, "MIN_QUERY_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "RUNNING_POLL_INTERVAL_S", 0.0)
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(module, "time", clock)
    return asyncio.run(followed())


def test_a_per_user_limit_is_tolerated_for_a_while_before_giving_up(monkeypatch):
    waits = [ALONE + OTHER, *[ALONE] * 6]
    assert "runs on c1" in follow([*waits, RUNS], monkeypatch)
    # Another job of the user ran in between.
    assert "runs on c1" in follow([*waits, *waits, RUNS], monkeypatch)
    with pytest.raises(StartError, match="job 7 would never start: QOSMaxGRESPerUser"):
        follow([ALONE] * 9, monkeypatch)


def test_other_limits_fail_the_job_at_the_second_query(monkeypatch):
    with pytest.raises(StartError, match="job 7 would never start: PartitionTimeLimit"):
        follow([ALONE.replace("QOSMaxGRESPerUser", "PartitionTimeLimit")] * 2, monkeypatch)


def test_one_answer_read_twice_does_not_fail_the_job(fake: FakeScheduler, monkeypatch):
    """After a slow query, its answer is used for longer than the interval between two polls."""
    scheduler = Scheduler(Site("x"), Elsewhere())  # type: ignore[arg-type]

    async def followed() -> list[str]:
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        log = fake.folder / "asked"
        fake.instead("squeue", f"echo >> {log}; echo '{job}|PENDING|PartitionNodeLimit|N/A||N/A|x'")
        queue = Queue(Site("x"), Elsewhere(), Remote("x", job=job), lambda *about: None)
        with pytest.raises(StartError, match="would never start"):
            await queue.follow()
        return log.read_text().splitlines()

    monkeypatch.setattr(module, "MIN_QUERY_INTERVAL_S", 0.01)
    monkeypatch.setattr(status_cache, "MIN_QUERY_INTERVAL_S", 0.5)
    assert len(asyncio.run(followed())) == 2


def test_a_limit_that_appears_after_submission_may_pass(fake: FakeScheduler, monkeypatch):
    """Partitions may allow less at night, and nodes may be drained for maintenance."""
    scheduler = Scheduler(Site("x"), Elsewhere())  # type: ignore[arg-type]

    async def status() -> JobStatus:
        job = await scheduler.submit(scheduler.script("x", "/tmp", []))
        fake.instead("squeue", f"echo '{job}|PENDING|PartitionNodeLimit|N/A||N/A|x'")
        return await scheduler.status(job)

    why = "PartitionNodeLimit: it asks for more nodes than the partition has"
    limited = f"is waiting in the queue ({why})"
    fresh = asyncio.run(status())
    assert fresh.words == f"{limited}: as submitted, it will never start"
    assert (fresh.never, fresh.patience) == (True, 0)
    monkeypatch.setattr(scheduler_client, "COULD_START_AFTER_S", 0.0)
    old = asyncio.run(status())
    assert old.words == limited
    assert (old.never, old.patience) == (True, 86400)


def test_a_maintenance_of_pbs_is_waited_out(monkeypatch):
    hours = 120  # polls in each
    assert "runs on c1" in follow([*[NEVER_NOW] * 23 * hours, RUNS_AT_LAST], monkeypatch, pbs)
    with pytest.raises(StartError, match="job 7 would never start: Can Never Run"):
        follow([NEVER_NOW] * 25 * hours, monkeypatch, pbs)


@pytest.mark.parametrize(("partition", "is_hopeless"), [("long", True), ("short,long", False)])
def test_a_limit_of_one_of_several_partitions_does_not_fail_the_job(
    fake: FakeScheduler, partition: str, is_hopeless: bool
):
    """Slurm has one reason for a job, whichever of its partitions that is about."""
    job = Job(partition=partition)
    scheduler = Scheduler(Site("x", job=job), Elsewhere())  # type: ignore[arg-type]

    async def status() -> JobStatus:
        made = await scheduler.submit(scheduler.script("x", "/tmp", []))
        fake.instead("squeue", f"echo '{made}|PENDING|PartitionTimeLimit|N/A||N/A|x'")
        return await scheduler.status(made)

    assert asyncio.run(status()).never is is_hopeless


def test_a_job_submitted_elsewhere_is_not_taken_for_a_new_one(fake: FakeScheduler):
    """It may have waited for hours when a limit is lowered."""
    fake.instead("squeue", "echo '77|PENDING|PartitionNodeLimit|N/A||N/A|x'")
    status = asyncio.run(Scheduler(Site("x"), Elsewhere()).status("77"))  # type: ignore[arg-type]
    assert (status.never, status.patience) == (True, 86400)
