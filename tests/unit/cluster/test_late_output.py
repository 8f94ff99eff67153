"""What a rank writes after it was given up, as its node was cut off, is added to the record."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.cluster.repair import complete_all
from rankroom.errors import UnwrittenError
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RankInfo, event_line
from rankroom.record.store import Store, Writer
from rankroom.supervisor.late_output import LateOutput
from record_makers import log, start_record

BEGIN = event_line("status", 0, 0, 0, state="running", spool={"stdout": 0})


def said(number: int, text: str, to: int) -> bytes:
    return event_line("log", 0, number, number, stream="stdout", text=text, to=to)


@pytest.fixture
def given_up(home: Path):
    """A finished run whose rank was given up after two events: its store, id and spool."""
    _, run, writer = start_record(home, size=1, ranks=[RankInfo(0, "c4", 99, "cpu")])
    known = BEGIN + said(1, "one\n", 4)
    writer.append(known)
    # The rank's last output, taken from its stdout instead of its spool.
    writer.append(said(2, "two\n", 8))
    writer.append(
        event_line("status", 0, 3, 9, state="lost", note="was given up", spooled=len(known))
    )
    run.state, run.end = "failed", run.start + 10
    run.ranks[0].state = "lost"
    writer.finish(run)
    paths = ClusterPaths("job-1")
    paths.make(1)
    paths.write(ClusterInfo("job-1", 1, "stopped", ranks=run.ranks, created=time.time()))
    spool = paths.spool(0) / f"{run.id}.jsonl"
    spool.write_bytes(known)
    return Store(), run.id, spool


def texts(store: Store, run_id: str) -> list[str]:
    complete_all(store)
    return [event["text"] for event in store.events(run_id) if event["kind"] == "log"]


def test_late_output_is_added_to_the_record_once(given_up):
    store, run_id, spool = given_up
    assert texts(store, run_id) == ["one\n", "two\n"]
    with spool.open("ab") as file:
        # The spool has the text that was taken from stdout as well, and more.
        file.write(said(2, "two\nthr", 11))
        file.write(said(3, "ee\n", 14)[:20])
    assert texts(store, run_id) == ["one\n", "two\n", "thr"]
    with spool.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(said(3, "ee\n", 14)[20:])
        file.write(event_line("error", 0, 4, 5, ename="E", evalue="", traceback=[]))
        file.write(event_line("status", 0, 5, 5, state="error"))
    for _ in range(2):
        assert texts(store, run_id) == ["one\n", "two\n", "thr", "ee\n"]
    events = list(store.events(run_id))
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["kind"] for event in events].count("error") == 1
    assert store.load(run_id).state == "failed"


def test_an_event_after_a_truncated_one_in_the_spool_is_added(given_up):
    store, run_id, spool = given_up
    with spool.open("ab") as file:
        # While the disk was full, only the beginning of an event was written; the next is complete.
        file.write(said(2, "lost\n", 13)[:30] + bytes(40) + said(3, "four\n", 18))
    assert texts(store, run_id) == ["one\n", "two\n", "four\n"]


def test_a_spool_without_recent_writes_is_removed(given_up):
    store, _, spool = given_up
    os.utime(spool, (0, 0))
    assert complete_all(store) == []
    assert not spool.exists()


def test_nothing_is_added_for_a_rank_that_was_killed(home: Path):
    _, run, writer = start_record(home, size=1, ranks=[RankInfo(0, "c4", 99, "cpu")])
    writer.append(BEGIN + event_line("status", 0, 1, 9, state="lost", note="was killed"))
    run.state, run.ranks[0].state = "failed", "lost"
    writer.finish(run)
    paths = ClusterPaths("job-1")
    paths.make(1)
    paths.write(ClusterInfo("job-1", 1, "running", ranks=run.ranks, created=time.time()))
    (paths.spool(0) / f"{run.id}.jsonl").write_bytes(BEGIN + log(0, "known\n", 1))
    assert texts(Store(), run.id) == []


def test_late_output_is_added_after_a_failed_read(given_up, monkeypatch):
    store, run_id, spool = given_up
    had = spool.stat().st_size
    with spool.open("ab") as file:
        file.write(said(2, "two\nthree\n", 14))
    info = SimpleNamespace(ranks=[])
    run = SimpleNamespace(id=run_id, info=info, given_up={0: had}, is_closed=True)
    late = LateOutput(store, lambda rank: spool.parent)
    late.follow(run)
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == spool:
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        late.add()
    for _ in range(2):
        late.add()
    found = [event["text"] for event in store.events(run_id) if event["kind"] == "log"]
    assert found == ["one\n", "two\n", "three\n"]


def test_late_output_is_not_added_twice_after_a_full_disk(given_up, monkeypatch):
    store, run_id, spool = given_up
    marks = [event_line("mark", 0, 3 + at, at, name=f"m{at}", args={}) for at in range(3)]
    with spool.open("ab") as file:
        file.write(said(2, "two\nthree\n", 14) + b"".join(marks[:2]))
    append = Writer.append

    def fill(self: Writer, lines: bytes) -> None:
        there = lines.splitlines(keepends=True)
        append(self, b"".join(there[:2]))
        raise UnwrittenError("No space left on device", b"".join(there[2:]))

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "append", fill)
        assert texts(store, run_id) == ["one\n", "two\n", "three\n"]
    with spool.open("ab") as file:
        file.write(marks[2] + said(6, "four\n", 19))
    for _ in range(2):
        assert texts(store, run_id) == ["one\n", "two\n", "three\n", "four\n"]
    events = list(store.events(run_id))
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [e["name"] for e in events if e["kind"] == "mark"] == ["m0", "m1", "m2", "late"]
