"""`rankroom lab` without a real site: what happens to its job when something fails."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import pytest
from click.testing import CliRunner

from rankroom.cli import lab_command, main
from rankroom.cli.lab_command import LabCommand, NoneRuns
from rankroom.cli.terminal import Terminal
from rankroom.errors import LabError, RankroomError, SchedulerError, SshError, UselessJob
from rankroom.jupyter_job import lab as labs
from rankroom.jupyter_job.lab import Lab
from rankroom.jupyter_job.saved_labs import SavedLab
from rankroom.scheduler import pbs, slurm
from rankroom.scheduler.site import Site


class Login:
    """A login node that is reachable."""

    name = "login"

    async def open(self) -> None:
        pass


class Submits7:
    """A scheduler that accepts job 7, and records which jobs are cancelled."""

    site, place, kind = Site("test"), Login(), slurm

    def __init__(self, refuses: bool = False) -> None:
        self.submitted, self.cancelled, self.refuses = 0, [], refuses

    async def own_folder(self, name: str) -> str:
        return f"/scratch/{name}"

    def script(self, *words: Any) -> str:
        return ""

    async def find(self, name: str) -> list[str]:
        return []

    async def submit(self, script: str, others: Any = ()) -> str:
        self.submitted += 1
        await asyncio.sleep(0.01)
        return "7"

    async def cancel(self, job: str) -> None:
        if self.refuses:
            raise SchedulerError("scancel does not answer")
        self.cancelled.append(job)


@pytest.fixture
def ended(home, monkeypatch, capsys):
    """Return a function that makes `rankroom lab` fail once its job is submitted.

    It returns the output, and whether the job was cancelled.
    """

    def end(error: Exception, **how: Any) -> tuple[str, bool]:
        async def follow(*words: Any) -> None:
            raise error

        async def cancel(lab: Lab) -> None:
            await lab.scheduler.cancel(lab.job)

        monkeypatch.setattr(lab_command, "follow", follow)
        monkeypatch.setattr(Lab, "cancel", cancel)
        scheduler: Any = Submits7()
        command = LabCommand(scheduler, scheduler.place, Terminal(), False, 0)
        with pytest.raises(RankroomError):
            asyncio.run(command.run(None, None))
        return capsys.readouterr().out, scheduler.cancelled == ["7"]

    return end


@pytest.mark.parametrize(
    "error", [SshError("the link is lost", "lost"), LabError("no answer through the tunnel")]
)
def test_an_unreachable_job_is_left_running(ended, error: Exception):
    said, cancelled = ended(error)
    assert not cancelled
    assert "job 7 was not cancelled" in said and "--attach 7" in said


def test_the_displayed_cancel_command_is_that_of_the_scheduler(home):
    scheduler: Any = Submits7()
    scheduler.kind = pbs
    command = LabCommand(scheduler, scheduler.place, Terminal(), False, 0)
    command._lab = Lab(scheduler, "/scratch/labs", SavedLab("test", "7"))
    assert command._left().endswith(
        "--attach 7` attaches to it again, `qdel 7` at the site cancels it"
    )


def test_a_job_that_is_of_no_use_is_cancelled(ended):
    said, cancelled = ended(UselessJob("as submitted, it will never start"))
    assert cancelled
    assert "job 7 was cancelled" in said


def test_a_taken_port_is_refused_before_a_job_is_submitted(home):
    scheduler: Any = Submits7()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = LabCommand(scheduler, scheduler.place, Terminal(), False, port)
        with pytest.raises(LabError, match=f"port {port} of this machine is taken"):
            asyncio.run(command.run(None, None))
    assert scheduler.submitted == 0


def test_a_privileged_port_is_reported_as_reserved(monkeypatch):
    def denied(port: int) -> int:
        raise PermissionError

    monkeypatch.setattr(labs, "_bound", denied)
    with pytest.raises(LabError, match="port 443 is reserved for administrators"):
        labs.demand_free(443)


@pytest.mark.parametrize("refuses", [False, True])
def test_leaving_during_submission_cancels_or_names_the_job(home, refuses: bool):
    scheduler: Any = Submits7(refuses)

    async def left() -> None:
        submitting = asyncio.create_task(Lab.submit(scheduler))
        await asyncio.sleep(0.005)
        submitting.cancel()
        await submitting

    with pytest.raises(LabError if refuses else asyncio.CancelledError) as error:
        asyncio.run(left())
    assert scheduler.cancelled == ([] if refuses else ["7"])
    assert not refuses or "jobs --cancel 7 --site test" in str(error.value)


def test_attach_tries_the_next_newest_lab_if_the_newest_is_over(home, monkeypatch):
    SavedLab("two", "5", created=1.0).write()
    SavedLab("one", "7", created=2.0).write()
    asked: list[Any] = []

    async def run(command: LabCommand, attach: str, last: SavedLab) -> None:
        asked.append((last.site, last.job))
        if last.site == "one":
            last.remove()
            raise NoneRuns("no lab of yours runs at one")

    monkeypatch.setattr(LabCommand, "run", run)
    monkeypatch.setattr(lab_command.sites, "load", Site)
    done = CliRunner().invoke(main, ["lab", "--attach"])
    assert done.exit_code == 0, done.output
    assert asked == [("one", "7"), ("two", "5")]


def test_a_second_ctrl_c_stops_waiting_for_the_end_of_a_job(home, monkeypatch, capsys):
    async def cancel(lab: Lab) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(Lab, "cancel", cancel)
    scheduler: Any = Submits7()

    async def pressed() -> None:
        command = LabCommand(scheduler, scheduler.place, Terminal(), False, 0)
        command._lab = Lab(scheduler, "/scratch/labs", SavedLab("test", "7"))
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, event.set)
        await asyncio.wait_for(command._cancel(event), 10)

    asyncio.run(pressed())
    assert "job 7 may still run" in capsys.readouterr().out


def test_cancel_polls_again_after_a_failed_status_query(home, monkeypatch):
    looks = [SchedulerError("squeue does not answer"), None]

    class Looks(Submits7):
        async def status(self, job: str) -> Any:
            if error := looks.pop(0):
                raise error
            return type("Status", (), {"state": "gone"})

    async def clear(lab: Lab, log: bool = True) -> None:
        pass

    monkeypatch.setattr(Lab, "clear", clear)
    scheduler: Any = Looks()
    asyncio.run(Lab(scheduler, "/scratch/labs", SavedLab("test", "7")).cancel())
    assert scheduler.cancelled == ["7"] and looks == []


def test_sighup_stays_ignored_under_nohup():
    async def waits() -> Any:
        with Terminal().interrupt_event():
            return signal.getsignal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert asyncio.run(waits()) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
