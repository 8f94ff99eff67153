"""A submission without a reply: its job is found, or the user is told to look for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_scheduler import FAKES, Elsewhere, FakeScheduler
from rankroom.errors import SchedulerError, SshError, StartError
from rankroom.record.cluster_file import Remote
from rankroom.remote.queue import Queue
from rankroom.scheduler import scheduler_client
from rankroom.scheduler.scheduler_client import LISTING_DELAY_S, LostAnswerError, Scheduler
from rankroom.scheduler.site import Site
from rankroom.scheduler.submitted_jobs import all_submitted

SITE = Site("mine")
COMMANDS = {"slurm": ("sbatch", "squeue"), "pbs": ("qsub", "qselect")}
LOST = {
    "slurm": "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "pbs": "qsub: End of File",
}
# Runs the fake scheduler's own command, but drops its reply.
ACCEPTS = 'sh -c \'mv "$1" "$1.not"; "$2" >/dev/null; mv "$1.not" "$1"\' sh {} {}'


@pytest.fixture(params=["slurm", "pbs"])
def kind(request, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(scheduler_client, "FIND_JOB_TIMEOUT_S", 1.0)
    monkeypatch.setattr(scheduler_client, "FIND_JOB_INTERVAL_S", 0.1)
    return str(request.param)


def loses(fake: FakeScheduler, kind: str, end: str = "", accepts: bool = True) -> None:
    """Make submissions lose their reply; the job is submitted only if `accepts`."""
    name = COMMANDS[kind][0]
    own = ACCEPTS.format(fake.folder / "instead" / name, FAKES / kind / name)
    said = end or f"cat >&2 <<'END'\n{LOST[kind]}\nEND\nexit 1"
    fake.instead(name, f"{own if accepts else 'cat >/dev/null'}\n{said}")


def test_a_job_whose_submission_reply_was_lost_is_found_by_name(fake: FakeScheduler, kind: str):
    scheduler = Scheduler(replace(SITE, scheduler=kind), Elsewhere())  # type: ignore[arg-type]

    async def all_of_it() -> None:
        first = await scheduler.submit(scheduler.script("lab", "/tmp", []))
        others = await scheduler.find("lab")
        assert others == [first]
        loses(fake, kind)
        job = await scheduler.submit(scheduler.script("lab", "/tmp", []), others=others)
        assert job != first
        assert sorted(await scheduler.find("lab")) == sorted([first, job])
        assert {each.job for each in all_submitted()} == {first, job}

    asyncio.run(all_of_it())


def test_a_job_whose_submission_timed_out_is_found(fake: FakeScheduler, kind, monkeypatch):
    monkeypatch.setattr(scheduler_client, "SUBMIT_TIMEOUT_S", 3.0)
    loses(fake, kind, end="exec sleep 60")
    scheduler = Scheduler(replace(SITE, scheduler=kind), Elsewhere())
    job = asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))
    assert asyncio.run(scheduler.find("x")) == [job]


WRAPPED = "echo Thank you, it is on its way."


def test_a_job_is_found_if_a_wrapper_prints_no_job_id(fake: FakeScheduler, kind: str):
    scheduler = Scheduler(replace(SITE, scheduler=kind), Elsewhere())  # type: ignore[arg-type]

    async def all_of_it() -> None:
        first = await scheduler.submit(scheduler.script("lab", "/tmp", []))
        loses(fake, kind, end=WRAPPED)
        job = await scheduler.submit(scheduler.script("lab", "/tmp", []), others=[first])
        assert sorted(await scheduler.find("lab")) == sorted([first, job])
        assert {each.job for each in all_submitted()} == {first, job}

    asyncio.run(all_of_it())


def test_an_answer_without_an_id_is_shown_where_there_is_no_job(fake: FakeScheduler, kind: str):
    loses(fake, kind, end=WRAPPED, accepts=False)
    scheduler = Scheduler(replace(SITE, scheduler=kind), Elsewhere())  # type: ignore[arg-type]
    words = (
        rf"(?s){COMMANDS[kind][0]} gave no job id; .*Thank you.*unknown whether job x was accepted"
    )
    with pytest.raises(StartError, match=words):
        asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))
    fake.fails(COMMANDS[kind][1], "no answer")
    with pytest.raises(LostAnswerError, match=words):
        asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))


def test_a_lost_submission_whose_job_is_not_found_is_reported(fake: FakeScheduler, kind: str):
    loses(fake, kind, accepts=False)
    scheduler = Scheduler(replace(SITE, scheduler=kind), Elsewhere())  # type: ignore[arg-type]
    with pytest.raises(SchedulerError) as caught:
        asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))
    assert not isinstance(caught.value, LostAnswerError)
    assert "It is unknown whether job x was accepted" in str(caught.value)
    assert f"run `{scheduler.kind.LIST}` there" in str(caught.value)
    assert "nothing was lost" not in str(caught.value)
    fake.fails(COMMANDS[kind][1], "no answer")
    with pytest.raises(LostAnswerError):
        asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))


def test_a_connection_lost_during_submission_leaves_it_unknown(fake: FakeScheduler, kind: str):
    class Cut(Elsewhere):
        async def run(self, *words: Any, **how: Any) -> Any:
            await super().run(*words, **how)
            raise SshError("the link was lost", "lost")

    scheduler = Scheduler(replace(SITE, scheduler=kind), Cut())  # type: ignore[arg-type]
    with pytest.raises(SshError, match="link was lost\nIt is unknown whether job x was accepted"):
        asyncio.run(scheduler.submit(scheduler.script("x", "/tmp", [])))


@pytest.mark.parametrize("then", ["submit", "cancel"])
def test_a_cluster_adopts_or_cancels_a_job_whose_submission_reply_was_lost(
    fake: FakeScheduler, kind: str, tmp_path: Path, then: str
):
    site = Site("mine", scheduler=kind, scratch=str(tmp_path / "scratch"))  # type: ignore[arg-type]
    remote = Remote("mine", name="far")
    loses(fake, kind)
    fake.fails(COMMANDS[kind][1], "no answer")

    async def all_of_it() -> list[str]:
        queue = Queue(site, Elsewhere(), remote, lambda state, words: None)  # type: ignore[arg-type]
        with pytest.raises(LostAnswerError):
            await queue.submit("far", "login", "", False)
        assert queue.is_unsure
        with pytest.raises(SchedulerError):  # whether there is a job is still unknown
            await queue.cancel()
        assert queue.is_unsure
        fake.again(COMMANDS[kind][1])
        if then == "submit":
            await queue.submit("far", "login", "", False)
        else:
            await queue.cancel()
        assert not queue.is_unsure
        return await Scheduler(site, Elsewhere()).find("far")  # type: ignore[arg-type]

    left = asyncio.run(all_of_it())
    assert left == ([remote.job] if then == "submit" else [])
    assert remote.job


def test_a_resumed_submission_adopts_no_job_of_another_cluster(
    fake: FakeScheduler, kind: str, tmp_path: Path
):
    """Two machines may start clusters of the same name, and an agent may end while submitting."""
    site = Site("mine", scheduler=kind, scratch=str(tmp_path / "scratch"))  # type: ignore[arg-type]
    remote, told = Remote("mine", name="far"), []

    class Cut(Elsewhere):
        async def run(self, argv: Any, **how: Any) -> Any:
            if COMMANDS[kind][0] in argv:
                told.append((remote.state, remote.others))
                raise SshError("the link was lost", "lost")
            return await super().run(argv, **how)

    def tell(state: Any, words: str) -> None:
        remote.state = state

    async def all_of_it() -> list[str]:
        scheduler = Scheduler(site, Elsewhere())  # type: ignore[arg-type]
        first = await scheduler.submit(scheduler.script("far", "/tmp", []))
        with pytest.raises(SshError):
            await Queue(site, Cut(), remote, tell).submit("far", "login", "", False)  # type: ignore[arg-type]
        assert told == [("submitting", [first])]
        after = Queue(site, Elsewhere(), remote, tell)  # type: ignore[arg-type]
        assert after.is_unsure
        for act in (after.submit("far", "login", "", False), after.cancel()):
            with pytest.raises(LostAnswerError, match="not known yet whether the scheduler has"):
                await act  # the job may not be listed yet
        assert after.is_unsure and remote.has_job
        remote.asked -= LISTING_DELAY_S
        await after.submit("far", "login", "", False)
        assert not after.is_unsure
        return [first, remote.job, *await scheduler.find("far")]

    first, own, *found = asyncio.run(all_of_it())
    assert first != own and sorted(found) == sorted([first, own])
