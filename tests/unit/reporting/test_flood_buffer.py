"""Output that is buffered during a flood is never lost, whenever a SIGKILL comes."""

import os
import signal

import pytest

from rankroom.reporting import flood_buffer
from rankroom.reporting.flood_buffer import FloodBuffer, beside, left_in
from rankroom.reporting.streams import LINES_BEFORE_FLOOD, RankStream, Spooled


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stdout"


def spooled(path):
    return Spooled(path, os.open(os.devnull, os.O_WRONLY))


def in_child(work):
    """Run `work` in a child process that ends by SIGKILL."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_output_of_a_rank_killed_in_a_flood_is_in_spool_and_buffer(path):
    def flood():
        stream = RankStream(spooled(path), "stdout", lambda: None)
        for i in range(20_000):
            print("line", i, file=stream)

    in_child(flood)
    kept = path.read_bytes() + left_in(path)
    assert kept.decode().splitlines() == [f"line {i}" for i in range(20_000)]


def test_lines_are_buffered_only_in_a_flood_and_written_by_a_flush(path, monkeypatch):
    monkeypatch.setattr("rankroom.reporting.streams.TIME_MARK_INTERVAL_NS", 60_000_000_000)
    stream = RankStream(spooled(path), "stdout", lambda: None)
    for _ in range(LINES_BEFORE_FLOOD + 1):
        print("early", file=stream)
    assert path.read_bytes() == b"early\n" * (LINES_BEFORE_FLOOD + 1) and left_in(path) == b""
    print("late", file=stream)
    assert path.read_bytes().count(b"late") == 0 and left_in(path) == b"late\n"
    stream.flush()
    assert path.read_bytes().endswith(b"early\nlate\n") and left_in(path) == b""


def test_fileno_flushes_what_was_printed_before(path, monkeypatch):
    monkeypatch.setattr("rankroom.reporting.streams.TIME_MARK_INTERVAL_NS", 60_000_000_000)
    stream = RankStream(spooled(path), "stdout", lambda: None)
    for i in range(2 * LINES_BEFORE_FLOOD):
        print(i, file=stream)
    stream.fileno()
    assert path.read_text().splitlines()[-1] == str(2 * LINES_BEFORE_FLOOD - 1)


@pytest.mark.parametrize(
    ("moved", "left"),
    [(b"", b"one\ntwo\n"), (b"one\ntw", b"o\n"), (b"one\ntwo\n", b""), (b"C\none\ntwo\nC\n", b"")],
)
def test_a_kill_while_bytes_are_moved_neither_loses_nor_repeats_any(path, moved, left):
    path.write_bytes(b"before\n")

    def move():
        mine = FloodBuffer(path)
        assert mine.add(b"one\n") and mine.add(b"two\n")

        def write(data):
            with path.open("ab") as file:
                file.write(moved)
            os.kill(os.getpid(), signal.SIGKILL)

        mine.move(write, len(b"before\n"))

    in_child(move)
    assert left_in(path) == left


def test_data_larger_than_the_buffer_is_refused(path):
    mine = FloodBuffer(path)
    assert not mine.add(b"x" * flood_buffer.BUFFER_BYTES)
    assert not mine and left_in(path) == b""


def test_nothing_is_buffered_on_a_full_disk(path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not FloodBuffer(path).add(b"x")


def test_a_forked_child_does_not_touch_its_parents_buffer(path):
    mine = FloodBuffer(path)
    mine.add(b"parent's\n")
    pid = os.fork()
    if pid == 0:
        mine.leave()
        os._exit(int(mine.add(b"child's\n")) + int(bool(mine)))
    assert os.waitpid(pid, 0)[1] == 0
    assert left_in(path) == b"parent's\n"


def test_a_missing_or_short_buffer_file_holds_no_data(path):
    assert left_in(path) == b""
    beside(path).write_bytes(b"too short")
    assert left_in(path) == b""
