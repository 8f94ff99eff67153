"""The agent of a cluster on a site, with a fake login node and a fake job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rankroom.cluster import liveness
from rankroom.errors import SchedulerError, SshError, StartError, UsageError
from rankroom.record.cluster_file import (
    NAME_PATTERN,
    ClusterInfo,
    ClusterPaths,
    ClusterState,
    Remote,
)
from rankroom.record.store import Store, new_id
from rankroom.remote import agent as module
from rankroom.remote.agent import Agent
from rankroom.scheduler.site import Site
from record_makers import start_record

REFUSED = "cannot reach c1: it rejected your key or password; check the key\n`ssh c1` said:\n  no"


async def nothing(*about: Any, **more: Any) -> str:
    return ""


async def no_runs(*about: Any) -> list[Any]:
    return []


async def never(*about: Any, **more: Any) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def agent_of(state: ClusterState) -> AsyncIterator[Agent]:
    """An agent started for a cluster in this state, in job 12; it never reaches the site."""
    paths = ClusterPaths("far")
    paths.make(0)
    remote = Remote("test", state=state, job="12", name="far")  # type: ignore[arg-type]
    info = ClusterInfo("far", 1, state, created=time.time(), remote=remote)
    paths.write(info)
    made: Any = Agent(paths, info, remote, Site("test"))
    made.login.meet = made.login.find = made.queue.follow = never
    made.queue.cancel = made.queue.end = nothing
    made.login.clear = no_runs
    try:
        yield made
    finally:
        made.server.close()


def doing(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_a_second_stop_waits_for_the_first_to_finish(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.05)

    async def test() -> None:
        cancelled, asked = asyncio.Event(), []

        async def cancel() -> None:
            asked.append(1)
            await cancelled.wait()

        async with agent_of("running") as agent:
            agent.queue.cancel = cancel  # type: ignore[method-assign]
            first, second = await agent.stop(), await agent.stop()
            assert first == second and "keeps trying to cancel its job 12" in first
            monkeypatch.setattr(module, "STOP_TIMEOUT_S", 60.0)
            cancelled.set()
            assert await agent.stop() == "" and await agent.stop() == ""
            assert agent.info.state == "stopped" and asked == [1]

    doing(test)


def test_an_agent_completes_the_stop_that_its_predecessor_began(home: Path):
    async def test() -> None:
        done = []
        async with agent_of("ending") as agent:

            async def cancel() -> None:
                done.append("cancelled")

            async def clear(*about: str) -> list[Any]:
                done.append(about[:3])
                return []

            agent.queue.cancel = cancel  # type: ignore[method-assign]
            agent.login.clear = clear  # type: ignore[method-assign]
            await agent.keep()
            assert done == ["cancelled", ("far", "12", "")]
            assert not agent.paths.folder.exists()

    doing(test)


def test_a_node_that_refuses_ssh_is_named_and_tried_ever_more_rarely(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    async def refuse() -> None:
        raise SshError(REFUSED, "denied")

    async def test() -> None:
        async with agent_of("starting") as agent:
            agent._host = "login"
            agent.supervisor.address = "tcp://10.0.0.1:4000"
            agent.supervisor.connect = refuse  # type: ignore[method-assign]
            agent._connected.set()
            with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
                patch.setattr(asyncio, "sleep", pause)
                await agent._serve()
            told = agent.paths.read()
            assert told is not None and told.remote is not None
            assert told.remote.state == "lost" and told.remote.words == REFUSED.split("\n")[0]
            assert pauses == [1, 2, 3, 4]

    doing(test)


@pytest.mark.parametrize("ended", [True, False])
def test_an_incomplete_replica_notes_whether_it_may_be_completed(home: Path, ended: bool):
    async def test() -> None:
        async with agent_of("running") as agent:
            _, run, writer = start_record(home, cluster="far")
            writer.close()
            if ended:
                agent.status.fail("job 12 was cancelled", "ended")
            else:
                agent.status.over.set()  # as SIGTERM does
            await agent.keep()
            [note] = Store().load(run.id).notes
            assert ("was over before all of this run" in note) == ended
            assert ("`%cluster attach far`" in note) == (not ended)

    doing(test)


def test_a_replica_that_the_local_disk_refuses_is_noted_in_the_run(home: Path):
    async def test() -> None:
        async with agent_of("running") as agent:
            _, run, writer = start_record(home, cluster="far")
            writer.close()

            async def begin_now(run_id: str) -> str:
                return "cannot write the record: no space left on device"

            async def ask(*about: Any, **more: Any) -> Any:
                return {"run": run.to_json()}

            agent.status.ready = True
            agent.supervisor.ask = ask  # type: ignore[method-assign]
            agent.records.begin_now = begin_now  # type: ignore[method-assign]
            said = await agent._pass_on(Asked({"do": "run"}))  # type: ignore[arg-type]
            [note] = said["run"]["notes"]
            assert note.startswith("the run continues at the site, but")
            assert note.endswith("left on device")

    doing(test)


def test_an_agent_on_a_full_disk_reconnects_to_its_ranks(home: Path):
    """Whether the home is shared was tested before the submission, and is not tested again."""

    async def test() -> None:
        async with agent_of("running") as made:
            agent: Any = made

            async def refuse(folder: Path) -> None:
                raise OSError(28, "No space left on device")

            async def find(*about: str) -> None:
                agent.status.over.set()

            agent.login.meet, agent.login.find = refuse, find
            agent.queue.state = "running"
            await agent._serve_once()
            assert agent.status.over.is_set()

    doing(test)


def test_a_local_error_does_not_fail_a_cluster_that_may_have_a_job(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "RETRY_DELAY_S", 0.0)

    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            agent.remote.job, agent.remote.others = "", []
            agent.status.save()
            assert liveness.remote_on(agent.paths.read())
            troubles, cancelled = [OSError(11, "no process can be started")], []

            async def part() -> None:
                if troubles:
                    raise troubles.pop()

            async def cancel() -> None:
                cancelled.append(1)

            await agent._lasting(part)
            assert agent.info.state == "starting" and not agent.status.over.is_set()
            agent.queue.cancel = cancel
            agent.status.fail("it cannot be")
            await agent._clean()
            assert cancelled == [1]

    doing(test)


def test_a_job_that_will_never_start_is_cancelled_before_it_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "RETRY_DELAY_S", 0.0)

    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            answers: list[Exception | None] = [
                SshError("the link is lost", "lost"), SchedulerError("no answer"),
                OSError(11, "no process can be started"), None,
            ]  # fmt: skip
            stood = []

            async def cancel() -> None:
                stood.append((agent.info.state, agent.status.over.is_set()))
                if error := answers.pop(0):
                    raise error

            async def part() -> None:
                raise StartError("job 12 would never start. It was cancelled")

            agent.queue.cancel = cancel
            await agent._lasting(part)
            assert stood == [("starting", False)] * 4
            assert agent.info.state == "failed"
            assert agent.info.message == "job 12 would never start. It was cancelled"

    doing(test)


def test_a_job_past_its_time_limit_is_over_only_if_the_site_was_reached(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    """While ssh fails, it is unknown whether the job was suspended or given more time."""
    monkeypatch.setattr(module, "RETRY_DELAY_S", 0.0)

    async def test() -> None:
        async with agent_of("running") as made:
            agent: Any = made
            agent.remote.until = 1.0
            answers = [SshError("the link is lost", "lost")] * 2 + [SchedulerError("no answer")]

            async def cancel() -> None:
                raise answers.pop(0)

            agent.queue.cancel = cancel
            assert await agent.stop() == ""
            assert answers == [] and agent.info.state == "stopped"

    doing(test)


def test_a_stop_overrides_a_job_end_that_is_noticed_meanwhile(home: Path):
    async def test() -> None:
        over, failed = asyncio.Event(), []

        async with agent_of("running") as made:
            agent: Any = made

            async def end() -> str:
                await over.wait()
                return "the time of job 12 is over"

            async def cancel() -> None:
                over.set()
                await asyncio.sleep(0.02)

            agent.queue.end, agent.queue.cancel = end, cancel
            agent.status.fail = lambda *about: failed.append(about)
            agent._over_soon()
            await asyncio.sleep(0)
            assert await agent.stop() == ""
            assert agent.info.state == "stopped" and failed == []

    doing(test)


def test_a_run_counts_as_running_until_the_site_reports_its_end(home: Path):
    """The lease does not end a cluster while a run is in progress."""

    async def test() -> None:
        async with agent_of("running") as made:
            agent: Any = made
            news = [{"r": "running", "s": "done"}, {"r": "done"}]
            on = []

            async def ask(*about: Any, **more: Any) -> Any:
                return {"version": 1, "cluster": {}, "runs": news.pop(0)}

            def told(cluster: Any) -> None:
                on.append(agent._is_running)
                if not news:
                    agent.status.over.set()

            agent.info.ready = [0]
            assert agent._is_running  # the site has not been reached yet
            agent.supervisor.connect, agent.supervisor.ask = nothing, ask
            agent._said_of_cluster, agent.records.begin = told, lambda run_id: None
            await agent._listen()
            assert on == [True, False]

    doing(test)


@pytest.mark.parametrize(("job", "counts"), [("12", True), ("", False)])
def test_a_cluster_whose_job_waits_counts_as_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, job: str, counts: bool
):
    """Ranks that were started from the sidebar are held by no notebook meanwhile."""
    monkeypatch.setattr(module, "POLL_INTERVAL_S", 0.01)

    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            agent.remote.job, agent.lease.pause = job, 0.0
            told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def over(in_use: bool) -> bool:
                told.done() or told.set_result(in_use)
                return False

            agent.lease.over = over
            minding = asyncio.create_task(agent._mind())
            assert await told is counts
            minding.cancel()

    doing(test)


def test_a_log_that_cannot_be_fetched_raises_instead_of_being_empty(home: Path):
    async def test() -> None:
        async with agent_of("running") as made:
            agent: Any = made

            async def ask(*about: Any) -> None:
                raise SshError(REFUSED, "denied")

            agent.login.ask, agent.remote.log = ask, "far-12.log"
            with pytest.raises(SshError, match="cannot reach c1"):
                await agent._do(Asked({"do": "log"}))
            await agent._end("job 12 was cancelled")
            assert agent.info.message == "job 12 was cancelled"

    doing(test)


def test_the_debugger_panel_is_refused_with_a_hint_to_breakpoint(home: Path):
    async def test() -> None:
        async with agent_of("running") as agent:
            with pytest.raises(UsageError, match=r"`breakpoint\(\)` opens the debugger"):
                await agent._do(Asked({"do": "debug"}))  # type: ignore[arg-type]

    doing(test)


@pytest.mark.parametrize("name", ["far", "x" * 63])
def test_a_remote_cluster_with_a_shared_home_gets_a_different_name(home: Path, name: str):
    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made

            async def meet(folder: Path) -> tuple[str, bool, float]:
                return "login", True, time.time()

            agent.login.meet, agent.info.name = meet, name
            await agent._meet()
            there = agent.remote.name
            assert NAME_PATTERN.fullmatch(there) and there.endswith("-job") and there != name

    doing(test)


@pytest.mark.parametrize("ahead_s", [8 * 3600.0, -8 * 3600.0])
def test_records_of_a_site_are_not_taken_for_older_if_the_local_clock_is_wrong(
    home: Path, ahead_s: float
):
    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            there = time.time()

            async def meet(folder: Path) -> tuple[str, bool, float]:
                return "login", False, there

            agent.login.meet, agent.info.created = meet, there + ahead_s
            await agent._meet()
            own = new_id(int(there * 1e6))
            assert agent.records.since < own
            # Saved with the cluster, for the next agent.
            assert agent.remote.began == min(there, there + ahead_s)

    doing(test)


def test_a_cell_whose_answer_is_lost_may_have_begun_and_is_withdrawn_if_not(home: Path):
    async def test() -> None:
        async with agent_of("running") as made:
            agent: Any = made
            asked: list[dict[str, Any]] = []

            async def ask(seconds: float, *buffers: bytes, **question: Any) -> Any:
                asked.append(question)
                if question["do"] == "run" or len(asked) == 3:
                    raise SshError("the link is cut", "lost")
                if question["do"] == "withdraw":
                    agent.status.over.set()
                return {"version": 1, "runs": {}, "cluster": {}}

            agent.supervisor.ask, agent.supervisor.connect = ask, nothing
            agent._said_of_cluster = lambda *about: None
            agent.status.ready = True
            with pytest.raises(
                SshError, match=r"link is cut\. The cell may have started there: check"
            ):
                await agent._do(Asked({"do": "run", "mark": "m1"}))
            with pytest.raises(SshError):  # the link is cut again, during the withdrawal
                await agent._listen()
            await agent._listen()
            said = [each["do"] for each in asked]
            assert said == ["run", "news", "withdraw", "news", "withdraw"]
            assert asked[-1]["mark"] == "m1" and not agent._unanswered

    doing(test)


def test_a_stop_before_there_is_a_job_does_not_contact_the_site(home: Path):
    """ssh may be asking for a code that the user does not have at hand."""

    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            agent.remote.job, agent.login.clear = "", never
            assert await asyncio.wait_for(agent.stop(), 20) == ""
            assert agent.info.state == "stopped"

    doing(test)


def test_a_failed_login_does_not_fail_a_cluster_that_is_being_stopped(home: Path):
    async def test() -> None:
        async with agent_of("starting") as made:
            agent: Any = made
            agent.remote.job, agent.status.stopping, agent.info.state = "", True, "ending"
            tries = []

            async def refused() -> None:
                tries.append(1)
                agent.status.over.set()
                raise SshError("cannot reach login", "denied")

            await agent._lasting(refused)
            assert tries and agent.info.state == "ending"

    doing(test)


class Asked:
    """A client's question."""

    buffers: tuple[bytes, ...] = ()

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
