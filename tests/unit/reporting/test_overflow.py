"""Events that a full disk refuses outlive the rank, even if nothing was sent."""

import os
import signal
import subprocess
import sys

import pytest

from rankroom.record.model import event_line, parse_event
from rankroom.reporting import overflow
from rankroom.reporting.overflow import Overflow, left_in
from rankroom.supervisor.assembly import Assembly

LINES = [event_line("log", 0, i, i, stream="stdout", text=f"line {i}\n") for i in range(9)]
AT = [len(b"".join(LINES[:i])) for i in range(10)]


@pytest.fixture
def small(monkeypatch):
    """Room for little more than three lines."""
    monkeypatch.setattr(overflow, "OVERFLOW_BYTES", AT[3] + 7)


def test_lines_of_one_run_are_kept(tmp_path):
    kept = Overflow(tmp_path)
    kept.begin("a")
    assert left_in(tmp_path, "a") == (0, b"")
    kept.add(100, b"one\n")
    kept.add(104, b"two\n")
    assert left_in(tmp_path, "a") == (100, b"one\ntwo\n")
    assert left_in(tmp_path, "b") == (0, b"")
    kept.add(200, b"after some that the disk took\n")
    assert left_in(tmp_path, "a") == (200, b"after some that the disk took\n")
    kept.begin("b")
    assert left_in(tmp_path, "a") == left_in(tmp_path, "b") == (0, b"")


def test_the_latest_whole_lines_replace_older_ones_when_space_is_short(tmp_path, small):
    kept = Overflow(tmp_path)
    kept.begin("a")
    for i, line in enumerate(LINES):
        kept.add(AT[i], line)
        first = max(0, i - 2)
        assert left_in(tmp_path, "a") == (AT[first], b"".join(LINES[first : i + 1]))
    kept.add(AT[9], b"x" * (overflow.OVERFLOW_BYTES + 1))
    assert left_in(tmp_path, "a") == (AT[6], b"".join(LINES[6:]))


def test_a_kill_during_a_write_loses_only_the_overwritten_line(tmp_path, small, monkeypatch):
    """The line that was being overwritten is left out."""
    pid = os.fork()
    if pid == 0:
        kept = Overflow(tmp_path)
        kept.begin("a")
        for i in range(3):
            kept.add(AT[i], LINES[i])
        put = kept._put

        def half(place, data):
            put(place, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        kept._put = half
        kept.add(AT[3], LINES[3])
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert left_in(tmp_path, "a") == (AT[1], LINES[1] + LINES[2])


def test_without_room_nothing_is_kept_and_nothing_fails(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    kept = Overflow(tmp_path)
    kept.begin("a")
    kept.add(0, b"line\n")
    assert left_in(tmp_path, "a") == (0, b"")


@pytest.mark.parametrize("in_file", [0, 2, 9])
@pytest.mark.parametrize("kept", [range(0, 9), range(2, 5), range(4, 9)])
@pytest.mark.parametrize("received", [0, 3, 5])
def test_a_record_is_completed_from_the_spool_and_the_overflow(tmp_path, in_file, kept, received):
    """`in_file` lines are in the spool file, `kept` in the overflow; `received` have arrived."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES[:in_file]))
    made = Overflow(tmp_path)
    made.begin("a")
    for i in kept:
        made.add(AT[i], LINES[i])
    assembly = Assembly("a", [0], lambda rank: tmp_path, lambda note: None, pytest.fail)
    assembly.take(0, 0, b"".join(LINES[:received]))
    got = assembly.rest(0)
    there = [i for i in range(received, 9) if i < in_file or i in kept]
    assert got == b"".join(LINES[i] for i in there)


def test_a_rank_killed_on_a_full_disk_before_sending_loses_no_events(tmp_path):
    code = """
import os, signal, sys, time
from pathlib import Path
from rankroom.reporting.reporter import Reporter

def refused(*args):
    raise OSError(28, "No space left on device")

reporter = Reporter(0, Path(sys.argv[1]), lambda header, lines: None)
reporter.install()
reporter.begin("a", 0)
print("line 0")
reporter.emit("mark", name="x", args={})
write, os.write, os.pwrite = os.write, refused, refused
for i in range(1, 200):
    print("line", i)
    if i % 50 == 0:
        reporter.emit("mark", name="x", args={})
reporter.emit("mark", name="x", args={})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    notes: list[str] = []
    rest = Assembly("a", [0], lambda rank: tmp_path, notes.append, pytest.fail).rest(0)
    events = [parse_event(line) for line in rest.splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    text = "".join(event.get("text", "") for event in events)
    assert text.splitlines() == [f"line {i}" for i in range(200)] and notes == []
