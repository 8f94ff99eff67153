"""The time limit of a job: the time left, the calls made before it, and why a job ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import rankroom
from rankroom.errors import UsageError
from rankroom.rank import deadline
from rankroom.rpc.server import Server
from rankroom.scheduler import job_end

SAID = "JobId=12 JobName=x JobState={state} Reason={reason} Requeue=1 EndTime={end} Command=/x"


def said(state: str = "RUNNING", reason: str = "None", end: float = 0.0) -> str:
    shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end)) if end else "Unknown"
    return SAID.format(state=state, reason=reason, end=shown)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> deadline.Limit:
    """A process outside of any job, which knows no limit yet."""
    made = deadline.Limit()
    monkeypatch.setattr(deadline, "_limit", made)
    for name in ("SLURM_JOB_ID", "RANKROOM_RPC", "RANKROOM_RPC_KEY"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: deadline.Limit) -> Path:
    """Put this process in Slurm job 12; the fake `scontrol` prints the returned file."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$*" = "show job --oneliner 12" ] && cat {tmp_path}/said\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    return tmp_path / "said"


def wait_for(calls: list[str], count: int) -> None:
    until = time.monotonic() + 60
    while len(calls) < count:
        assert time.monotonic() < until, calls
        time.sleep(0.01)  # signal handlers run between two iterations


def test_outside_a_job_there_is_no_time_limit(limit: deadline.Limit):
    assert rankroom.time_left() is None
    calls: list[str] = []
    rankroom.on_time_limit(lambda: calls.append("called"))
    assert calls == []


def test_a_process_in_a_job_asks_slurm(scontrol: Path):
    scontrol.write_text(said(end=time.time() + 1000))
    left = rankroom.time_left()
    assert left is not None
    assert 900 < left <= 1000


def test_time_left_is_none_in_a_job_without_a_time_limit(scontrol: Path):
    scontrol.write_text(said())
    assert rankroom.time_left() is None


def test_a_rank_reads_its_time_left_from_its_supervisor(
    limit: deadline.Limit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    end = time.time() + 500
    supervisor = Server("", tmp_path, lambda question: question.answer(until=end))
    monkeypatch.setenv("RANKROOM_RPC", supervisor.address)
    monkeypatch.setenv("RANKROOM_RPC_KEY", supervisor.key)
    left = rankroom.time_left()
    assert left is not None
    assert 400 < left <= 500


def test_a_call_is_made_in_the_main_thread_when_little_time_is_left(scontrol: Path):
    scontrol.write_text(said(end=time.time() + 100))
    calls: list[str] = []
    rankroom.on_time_limit(lambda: calls.append("early"), before=10)
    rankroom.on_time_limit(lambda: calls.append(threading.current_thread().name), before=150)
    wait_for(calls, 1)
    assert calls == ["MainThread"]


def test_a_call_is_made_even_if_a_library_resets_the_signal_handlers(scontrol: Path):
    scontrol.write_text(said(end=time.time() + 40))
    made = threading.Event()
    before = signal.getsignal(deadline._CALL_SIGNAL)
    try:
        rankroom.on_time_limit(made.set, before=37)
        signal.signal(deadline._CALL_SIGNAL, signal.SIG_DFL)  # the signal would now end the process
        assert made.wait(10)
    finally:
        signal.signal(deadline._CALL_SIGNAL, before)


def test_an_error_in_a_call_is_printed_and_does_not_propagate(scontrol: Path, capsys):
    scontrol.write_text(said(end=time.time() + 5))
    calls: list[str] = []

    def save() -> None:
        calls.append("saved")
        raise ValueError("no room")

    rankroom.on_time_limit(save)
    wait_for(calls, 1)
    assert "ValueError: no room" in capsys.readouterr().err


def test_a_function_of_the_same_name_takes_the_place_of_the_one_before(scontrol: Path):
    scontrol.write_text(said(end=time.time() + 1000))
    made = []
    for word in ("first", "second"):

        def save(word: str = word) -> None:
            made.append(word)

        rankroom.on_time_limit(save)
    scontrol.write_text(said(end=time.time() + 60))
    deadline._limit.until = time.time() + 60
    wait_for(made, 1)
    assert made == ["second"]


class Model:
    """An object with a method to call before the time limit."""

    def __init__(self, name: str, saved: list[str]) -> None:
        self.name, self.saved = name, saved

    def save(self) -> None:
        self.saved.append(self.name)


def test_methods_of_several_objects_are_all_called(limit: deadline.Limit, monkeypatch):
    saved: list[str] = []
    monkeypatch.setattr(deadline.recorder, "began", 1)
    generator, critic = Model("generator", saved), Model("critic", saved)
    for each in (generator, critic, generator):
        rankroom.on_time_limit(each.save)
    limit.until = time.time() + 60
    limit.make_calls()
    assert sorted(saved) == ["critic", "generator"]


def test_a_cell_that_runs_again_replaces_its_registered_methods(limit: deadline.Limit, monkeypatch):
    saved: list[str] = []
    for run in (1, 2):
        monkeypatch.setattr(deadline.recorder, "began", run)
        for name in ("generator", "critic"):
            rankroom.on_time_limit(Model(f"{name} {run}", saved).save)
    limit.until = time.time() + 60
    limit.make_calls()
    assert saved == ["generator 2", "critic 2"]


def test_a_forked_process_queries_the_limit_itself_but_makes_no_calls(scontrol: Path):
    scontrol.write_text(said(end=time.time() + 1000))
    rankroom.on_time_limit(print)
    scontrol.write_text(said(end=time.time() + 5000))
    child = os.fork()
    if child == 0:
        left = rankroom.time_left()
        os._exit(0 if left is not None and left > 2000 and not deadline._limit.calls else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_is_due_again_after_the_time_limit_was_extended(limit: deadline.Limit):
    call = deadline.Call(print, before=60)
    assert call.due(50)
    call.made = True
    assert not call.due(40)
    assert not call.due(3000)  # the job got more time
    assert call.due(30)
    assert not deadline.Call(print, before=60).due(None)


def test_registering_a_call_outside_the_main_thread_is_refused(limit: deadline.Limit):
    found: list[BaseException] = []

    def ask() -> None:
        try:
            rankroom.on_time_limit(print)
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("RUNNING", "None", ""),
        ("TIMEOUT", "TimeLimit", "the time of job 12 is over"),
        ("COMPLETING", "TimeLimit", "the time of job 12 is over"),
        ("CANCELLED", "None", "job 12 was cancelled"),
        ("COMPLETING", "None", "job 12 was cancelled or has ended"),
        ("NODE_FAIL", "NodeDown", "a node of job 12 has failed"),
        ("PREEMPTED", "None", "job 12 was preempted by another job"),
        ("PENDING", "BeginTime", "job 12 was requeued"),
    ],
)
def test_the_reason_for_a_jobs_end_is_read_from_scontrol(state: str, reason: str, words: str):
    assert job_end.why_over(said(state, reason), "12") == words


def test_a_new_end_of_the_job_is_noticed(scontrol: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_end, "MIN_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(job_end, "MAX_POLL_INTERVAL_S", 0.01)
    later = int(time.time()) + 7200.0
    scontrol.write_text(said(end=later))
    known = job_end.JobEnd("12", time.time() + 60)
    known.start_polling()
    until = time.monotonic() + 60
    while known.until != later:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_past_its_end_time_ran_out_of_time(scontrol: Path, monkeypatch: pytest.MonkeyPatch):
    # The fake `scontrol` may take a while to start.
    monkeypatch.setattr(job_end, "SHORT_COMMAND_TIMEOUT_S", 60.0)
    assert job_end.JobEnd("12", time.time() - 1).why() == "the time of job 12 is over"
    scontrol.write_text(said("COMPLETING"))
    assert job_end.JobEnd("12", time.time() + 60).why() == "job 12 was cancelled or has ended"


def test_a_job_with_a_higher_restart_count_was_requeued(limit: deadline.Limit):
    job = job_end.JobEnd("12", 0.0)
    job.update(said(end=time.time() + 60) + " Restarts=0")
    assert job.over == ""
    job.update(said(end=time.time() + 60) + " Restarts=1")
    assert job.over == "job 12 was requeued"
    assert job.why() == job.over
