"""A run's record is complete even if messages are lost or the disk is full for a while."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankroom.errors import RecordError, UnwrittenError
from rankroom.record import patient_writer
from rankroom.record.model import RunInfo, event_line
from rankroom.record.store import Store, Writer
from rankroom.supervisor import recorder
from rankroom.supervisor.rank_connections import RankGoneError
from rankroom.supervisor.recorder import Recorder
from record_makers import log, make_run

BEGIN = event_line("status", 0, 0, 0, state="running")
LINES = [log(0, f"{i}\n", i + 1) for i in range(9)]
END = event_line("status", 0, 10, 99, state="ok")
SAID = [BEGIN, *LINES, END]


class Ranks:
    """The connection to one rank; records what is sent, and runs scheduled calls at `tick`."""

    def __init__(self) -> None:
        self.ranks = [0]
        self.silent: dict[int, Any] = {}
        self.sent: list[dict[str, Any]] = []
        self.done: Future[Any] = Future()
        self.receive: Callable[[dict[str, Any], bytes], None] = lambda header, lines: None
        self._later: list[Callable[[], None]] = []

    def subscribe(self, run: str, receive: Callable[..., None]) -> None:
        self.receive = receive

    def unsubscribe(self, run: str) -> None: ...

    def execute(self, to: Iterable[int], source: str, **about: Any) -> dict[int, Future[Any]]:
        self.sent.append({"source": source, **about})
        return dict.fromkeys(to, self.done)

    def request(self, ranks: Any, **question: Any) -> list[Future[Any]]:
        return []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._later.append(call)

    def tick(self) -> None:
        due, self._later = self._later, []
        for call in due:
            call()

    def say(self, *batches: int) -> None:
        """Receive the batches with these numbers, of one line each."""
        for number in batches:
            at = len(b"".join(SAID[:number]))
            self.receive({"rank": 0, "at": at}, SAID[number])


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Recorder, Ranks, Store]:
    """Return a run whose rank has written everything to its spool; nothing has arrived."""
    store, ranks = Store(tmp_path), Ranks()
    made = Recorder("x = 1\n", make_run(1), ranks, store, lambda rank: tmp_path)  # type: ignore[arg-type]
    made.start(epoch=0)
    (tmp_path / f"{made.id}.jsonl").write_bytes(b"".join(SAID))
    return made, ranks, store


def text(store: Store, run: Recorder) -> str:
    return "".join(event["text"] for event in store.events(run.id) if event["kind"] == "log")


WHOLE = "".join(f"{i}\n" for i in range(9))


def test_a_run_whose_events_all_arrive_is_recorded_in_full(begun):
    run, ranks, store = begun
    ranks.say(*range(11))
    assert run.wait(0) and run.is_closed
    assert text(store, run) == WHOLE
    found = store.load(run.id)
    assert (found.state, found.lines) == ("done", 9)
    assert [sent["source"] for sent in ranks.sent] == ["x = 1\n"]


def test_a_gap_on_the_wire_is_filled_from_the_spool(begun):
    run, ranks, store = begun
    ranks.say(0, 1, 2, 5, 7, 10)
    assert run.wait(0)
    assert text(store, run) == WHOLE
    assert store.load(run.id).notes == []


def test_a_lost_last_batch_does_not_hang_the_run(begun):
    run, ranks, store = begun
    ranks.say(0, 1, 2)
    ranks.done.set_result({})  # the rank says that the cell has run
    assert not run.wait(0)
    ranks.tick()
    assert run.wait(0)
    assert text(store, run) == WHOLE
    assert store.load(run.id).state == "done"


def test_a_run_with_a_gone_rank_ends_only_once_the_cause_is_known(begun, tmp_path):
    run, ranks, store = begun
    (tmp_path / f"{run.id}.jsonl").write_bytes(b"".join(SAID[:-1]))
    ranks.say(0, 1)
    ranks.done.set_exception(RankGoneError("rank 0 is gone"))
    ranks.tick()
    assert not run.wait(0)
    run.lose({0: "was killed by SIGKILL"})
    assert run.wait(0)
    assert text(store, run) == WHOLE
    found = store.load(run.id)
    assert (found.state, found.ranks[0].state) == ("failed", "lost")
    assert found.failure is not None and found.failure.evalue == "rank 0 was killed by SIGKILL"


def test_a_full_disk_fails_no_run_and_the_spool_keeps_the_missing_output(
    begun, tmp_path, monkeypatch
):
    run, ranks, store = begun

    def full(writer: Writer, lines: bytes) -> None:
        raise UnwrittenError("cannot write the record: no space left", lines)

    with monkeypatch.context() as patch:
        patch.setattr(patient_writer, "MAX_BUFFERED_BYTES", 0)
        patch.setattr(Writer, "append", full)
        ranks.say(*range(11))
    assert run.wait(0)
    found = store.load(run.id)
    assert found.state == "done"
    assert any("output is missing" in note for note in found.notes)
    assert "8\\n" in (tmp_path / f"{run.id}.jsonl").read_text()


def test_a_cell_is_not_sent_if_its_record_cannot_be_written(tmp_path):
    (tmp_path / "runs").write_text("no folder")
    ranks = Ranks()
    run = Recorder("x", make_run(1), ranks, Store(tmp_path), lambda rank: tmp_path)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="set RANKROOM_HOME"):
        run.start(epoch=0)
    assert ranks.sent == []


def test_each_change_of_run_json_is_reported_until_the_run_is_over(tmp_path):
    ranks, told = Ranks(), []
    run = Recorder(
        "x", make_run(1), ranks, Store(tmp_path), lambda rank: tmp_path,  # type: ignore[arg-type]
        lambda run: told.append((run.info.state, run.is_over, list(run.info.notes))),
    )  # fmt: skip
    run.start(epoch=0)
    run.remark("the time is nearly over")
    ranks.say(*range(11))
    run.remark("too late")
    assert told == [
        ("running", False, ["the time is nearly over"]),
        ("done", True, ["the time is nearly over"]),
    ]


def test_a_lost_rank_is_reported_and_in_run_json_while_others_continue(tmp_path):
    """A client gets messages and also polls run.json: the two must not contradict each other."""
    ranks, store, told = Ranks(), Store(tmp_path), []
    run = Recorder(
        "x", make_run(2), ranks, store, lambda rank: tmp_path / str(rank),  # type: ignore[arg-type]
        lambda run: told.append([rank.state for rank in run.info.ranks]),
    )  # fmt: skip
    run.start(epoch=0)
    run.lose({1: "was killed by SIGKILL"})
    ranks.tick()
    assert told == [[None, "lost"]]
    assert [rank.state for rank in store.load(run.id).ranks] == [None, "lost"]


def test_events_received_from_a_rank_after_it_was_given_up_are_not_recorded(tmp_path):
    store, ranks = Store(tmp_path), Ranks()
    ranks.ranks = [0, 1]
    run = Recorder("x = 1\n", make_run(2), ranks, store, lambda rank: tmp_path / str(rank))  # type: ignore[arg-type]
    run.start(epoch=0)
    ranks.receive({"rank": 1, "at": 0}, event_line("status", 1, 0, 0, state="running"))
    ranks.say(0, 1, 2)
    run.lose({0: "was given up: its node c4 does not answer"})
    ranks.say(3, 4, 10)
    assert not run.wait(0) and run.info.ranks[0].state == "lost"
    events = [event for event in store.events(run.id) if event["rank"] == 0]
    assert [event["seq"] for event in events] == [0, 1, 2, 3]
    assert events[-1]["state"] == "lost" and text(store, run) == "0\n1\n"


@pytest.mark.parametrize("file", ["stdout", "{run}.jsonl"])
def test_a_spool_that_cannot_be_read_as_its_rank_dies_is_kept(begun, tmp_path, monkeypatch, file):
    run, ranks, store = begun
    (tmp_path / "stdout").write_text("last words\n")
    spool = tmp_path / f"{run.id}.jsonl"
    spool.write_bytes(b"".join(SAID[:4]))
    ranks.say(0, 1, 2)
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == tmp_path / file.format(run=run.id):
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    run._summary.spooled[0]["stdout"] = 0
    run.lose({0: "was killed by SIGKILL"})
    assert run.wait(0) and spool.exists()
    [note] = [each for each in store.load(run.id).notes if "missing from the record" in each]
    assert "Stale file handle" in note


def test_missing_output_is_noted_even_among_many_notes(begun, monkeypatch, tmp_path):
    run, ranks, store = begun
    for number in range(30):
        run._summary.note(f"note {number}")
    monkeypatch.setattr(patient_writer, "MAX_BUFFERED_BYTES", 0)
    with monkeypatch.context() as full:
        full.setattr(Writer, "append", refuse_all)
        ranks.say(0, 1, 2)
    ranks.say(3, 10)
    assert run.wait(0)
    notes = store.load(run.id).notes
    assert len(notes) == 21 and "missing from the record" in notes[-1]
    assert (tmp_path / f"{run.id}.jsonl").exists()


def test_a_record_closed_after_a_full_disk_takes_late_output(begun, monkeypatch, tmp_path):
    run, ranks, store = begun
    told: list[list[str]] = []
    run._tell = lambda recorder: told.append(list(recorder.info.notes))
    monkeypatch.setattr(recorder, "CLOSE_RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(recorder, "MAX_LATE_OUTPUT_MB", 0)
    finish, is_full = Writer.finish, [True]

    def refuse(self: Writer, info: RunInfo) -> None:
        if is_full:
            raise RecordError("the disk is full")
        finish(self, info)

    monkeypatch.setattr(Writer, "finish", refuse)
    ranks.say(*range(11))
    assert run.wait(0) and not run.is_closed and told[-1] == ["the disk is full"]
    is_full.clear()
    deadline = time.monotonic() + 60
    while not run.is_closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with run._lock:  # waits for the thread that has closed the record
        ranks.tick()
    assert told[-1] == [] and store.load(run.id).notes == []

    (tmp_path / "stdout").write_text("late\n" + "x" * (2 << 20))
    run._summary.spooled[0] = {"stdout": 0}
    run.take_late(0)
    written = store.load(run.id)
    assert run.info is run._summary.info and written.lines == run.info.lines == 10
    assert len(written.notes) == 1 and "the rest was not recorded" in written.notes[0]


def refuse_all(self: Writer, lines: bytes) -> None:
    raise UnwrittenError("cannot write the record: no space left", lines)
