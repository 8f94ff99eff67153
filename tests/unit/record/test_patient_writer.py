"""Lines that a full disk refuses are buffered, and written in order, once, when there is room."""

import os

import pytest

from rankroom.errors import RecordError
from rankroom.record import patient_writer
from rankroom.record.patient_writer import PatientWriter
from rankroom.record.store import Writer
from record_makers import log, start_record

LINES = [log(0, f"line {i}\n", seq=i) for i in range(8)]


@pytest.fixture
def record(tmp_path):
    """A record's store, run, and a patient writer."""
    store, run, writer = start_record(tmp_path)
    made = PatientWriter(writer)
    yield store, run, made
    made.close()


@pytest.fixture
def room(monkeypatch):
    """`room(n)`: the disk accepts `n` more bytes; None: any number."""
    left = None
    write = os.write

    def limited(fd, data):
        nonlocal left
        if left is None:
            return write(fd, data)
        data = bytes(data)[:left]
        if not data:
            raise OSError(28, "No space left on device")
        left -= len(data)
        return write(fd, data)

    def leave(size):
        nonlocal left
        left = size

    monkeypatch.setattr(os, "write", limited)
    return leave


def texts(store, run):
    return [event["text"] for event in store.events(run.id)]


# Nothing, part of a line, one line, one and a part, two (one call), and more than one call.
SIZES = [0, 10, len(LINES[0]), len(LINES[0]) + 10, 2 * len(LINES[0]), 3 * len(LINES[0]) + 5]


@pytest.mark.parametrize("first", SIZES)
@pytest.mark.parametrize("second", SIZES)
def test_each_line_comes_once_and_in_order(record, room, first, second):
    store, run, writer = record
    for i, size in enumerate([None, first, second, None]):
        room(size)
        writer.append(LINES[2 * i] + LINES[2 * i + 1])
    assert texts(store, run) == [f"line {i}\n" for i in range(8)]


def test_a_run_is_not_finished_before_its_buffered_lines_are_written(record, room):
    store, run, writer = record
    room(20)
    writer.append(LINES[0] + LINES[1])
    run.state = "done"
    for _ in range(2):
        with pytest.raises(RecordError, match="No space left on device"):
            writer.finish(run)
    assert store.load(run.id).state == "running"
    room(None)
    writer.finish(run)
    assert store.load(run.id).state == "done"
    assert texts(store, run) == ["line 0\n", "line 1\n"]


def test_lines_beyond_the_buffer_limit_are_refused_with_an_error(record, room, monkeypatch):
    store, run, writer = record
    monkeypatch.setattr(patient_writer, "MAX_BUFFERED_BYTES", 3 * len(LINES[0]))
    room(0)
    for line in LINES[:3]:
        writer.append(line)
    with pytest.raises(RecordError, match="No space left on device"):
        writer.append(LINES[3])
    room(None)
    writer.append(LINES[4])
    assert texts(store, run) == [f"line {i}\n" for i in (0, 1, 2, 4)]
    room(0)
    for line in LINES[5:8]:
        writer.append(line)  # there is room in memory again


def test_lines_appended_after_a_failed_finish_are_still_written(record, monkeypatch):
    """All events were written, and their file was closed, before the end failed."""
    store, run, writer = record
    writer.append(LINES[0])

    def full(self, run):
        raise RecordError("no space left")

    with monkeypatch.context() as patch, pytest.raises(RecordError):
        patch.setattr(Writer, "update", full)
        writer.finish(run)
    writer.append(LINES[1])
    run.state = "done"
    writer.finish(run)
    assert texts(store, run) == ["line 0\n", "line 1\n"]
    assert store.load(run.id).state == "done"
