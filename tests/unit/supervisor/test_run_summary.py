"""What run.json says about a run: which rank failed first, how many lines, why it is stuck."""

from __future__ import annotations

import pytest

from rankroom.record.model import Clock, Hang, event_line
from rankroom.supervisor import run_summary
from rankroom.supervisor.run_summary import RunSummary
from record_makers import log, make_run


def fail(summary: RunSummary, rank: int, ename: str, evalue: str) -> None:
    line = event_line("error", rank, 0, 5, ename=ename, evalue=evalue, traceback=[])
    list(summary.take(rank, line))


@pytest.mark.parametrize(
    ("ename", "evalue"),
    [
        ("HorovodInternalError", "Horovod has been shut down"),
        ("RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:40392"),
        ("DistBackendError", "socketProgress: Connection closed by remote peer c2<45678>"),
        ("DistBackendError", "ncclRemoteError: a network error or a remote process exiting"),
        ("UnavailableError", "Collective ops is aborted by: Socket closed"),
        ("KeyboardInterrupt", ""),
    ],
)
def test_a_dead_rank_is_blamed_before_ranks_that_failed_because_of_it(ename: str, evalue: str):
    summary = RunSummary(make_run(2))
    fail(summary, 0, ename, evalue)
    summary.blame(1, "was killed by SIGKILL")
    assert summary.info.failure is not None
    assert summary.info.failure.evalue == "rank 1 was killed by SIGKILL"


@pytest.mark.parametrize("ahead", [-200_000, 0, 200_000])
def test_the_first_failure_is_determined_on_a_common_clock(ahead: int):
    """Rank 1 is on another node, whose clock is off by more than the time between the failures."""
    run = make_run(2)
    run.ranks[1].clock = Clock(ahead, 50)
    summary = RunSummary(run)
    for rank, t, ename in ((1, 60_000 + ahead, "HorovodInternalError"), (0, 0, "ValueError")):
        mark = event_line("mark", rank, 0, 1_000_000 + t, name="raised", args={})
        error = event_line(
            "error", rank, 1, 1_000_009 + t, ename=ename, evalue="", traceback=[]
        )  # fmt: skip
        list(summary.take(rank, mark + error))
    assert run.failure is not None and (run.failure.rank, run.failure.ename) == (0, "ValueError")


def test_a_rank_that_failed_by_itself_is_blamed_before_one_that_died_later():
    summary = RunSummary(make_run(2))
    fail(summary, 0, "ValueError", "no such column")
    summary.blame(1, "was killed by SIGKILL")
    assert summary.info.failure is not None and summary.info.failure.ename == "ValueError"


@pytest.mark.parametrize("text", ["C:\\\n", "\n\n", "\\n", "a\\\\\nb\n", '"\\\\n"\n'])
def test_lines_are_counted_whatever_they_end_with(text: str):
    summary = RunSummary(make_run(1))
    list(summary.take(0, log(0, text, 0)))
    assert summary.info.lines == text.count("\n")


def test_a_stall_that_only_gets_longer_is_reported_at_intervals(monkeypatch):
    now = 100.0
    monkeypatch.setattr(run_summary.time, "monotonic", lambda: now)
    summary = RunSummary(make_run(2))

    def told(text: str) -> bool:
        return summary.hang(Hang(0, text))

    assert told("rank 0 waits in allreduce for 4 s; rank 1 is stuck at cell line 9")
    now += 1
    assert not told("rank 0 waits in allreduce for 5 s; rank 1 is stuck at cell line 9")
    assert told("rank 0 waits in allreduce for 5 s; rank 1 is stuck at cell line 10")
    now += run_summary.REPEATED_STALL_DELAY_S
    assert told("rank 0 waits in allreduce for 10 s; rank 1 is stuck at cell line 10")
    assert summary.hang(None)


@pytest.mark.parametrize("raised_first", [True, False])
def test_an_interrupt_does_not_hide_what_failed_before_it(raised_first: bool):
    """--timeout, for example, interrupts a run while another rank cannot be released."""
    run = make_run(2)
    summary = RunSummary(run)
    if not raised_first:
        summary.interrupt()
    mark = event_line("mark", 0, 0, 5, name="raised", args={})
    error = event_line("error", 0, 1, 6, ename="ValueError", evalue="no", traceback=[])
    list(summary.take(0, mark + error))
    summary.interrupt()
    run.ranks[0].state, run.ranks[1].state = "error", "interrupted"
    summary.end(True)
    assert run.state == ("failed" if raised_first else "interrupted")
    assert (run.failure is not None) == raised_first


def test_similar_stalls_are_noted_once_and_displace_no_other_notes():
    summary = RunSummary(make_run(2))
    for seconds in (7, 5, 12, 9):
        summary.hang(Hang(0, f"rank 1 waits in hvd.allreduce() for {seconds} s"))
        summary.hang(None)
    assert summary.info.notes == ["the run was stuck: rank 1 waits in hvd.allreduce() for 12 s"]
    for line in range(30):
        summary.hang(Hang(0, f"rank 1 waits in line {line} for 5 s"))
        summary.hang(None)
        summary.note(f"note {line}")
    assert len([each for each in summary.info.notes if "stuck" in each]) == run_summary.MOST_STUCK
    summary.remark("the time of job 7 is over in 2 min")
    assert summary.info.notes[-1] == "the time of job 7 is over in 2 min"
