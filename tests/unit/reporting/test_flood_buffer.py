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


def test_a_flood_that_is_killed_is_in_the_spool_and_beside_it(path):
    def flood():
        stream = RankStream(spooled(path), "stdout", lambda: None)
        for i in range(20_000):
            print("line", i, file=stream)

    in_child(flood)
    kept = path.read_bytes() + left_in(path)
    assert kept.decode().splitlines() == [f"line {i}" for i in range(20_000)]


def test_few_lines_go_to_disk_one_by_one_and_a_flush_brings_the_rest(path, monkeypatch):
    monkeypatch.setattr("rankroom.reporting.streams.TIME_MARK_INTERVAL_NS", 60_000_000_000)
    stream = RankStream(spooled(path), "stdout", lambda: None)
    for _ in range(LINES_BEFORE_FLOOD + 1):
        print("early", file=stream)
    assert path.read_bytes() == b"early\n" * (LINES_BEFORE_FLOOD + 1) and left_in(path) == b""
    print("late", file=stream)
    assert path.read_bytes().count(b"late") == 0 and left_in(path) == b"late\n"
    stream.flush()
    assert path.read_bytes().endswith(b"early\nlate\n") and left_in(path) == b""


def test_whoever_asks_for_the_descriptor_writes_after_what_was_printed(path, monkeypatch):
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
def test_killed_while_the_bytes_were_moved(path, moved, left):
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


def test_what_does_not_fit_is_refused(path):
    mine = FloodBuffer(path)
    assert not mine.add(b"x" * flood_buffer.BUFFER_BYTES)
    assert not mine and left_in(path) == b""


def test_nothing_is_held_on_a_full_disk(path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not FloodBuffer(path).add(b"x")


def test_a_forked_child_leaves_it_alone(path):
    mine = FloodBuffer(path)
    mine.add(b"parent's\n")
    pid = os.fork()
    if pid == 0:
        mine.leave()
        os._exit(int(mine.add(b"child's\n")) + int(bool(mine)))
    assert os.waitpid(pid, 0)[1] == 0
    assert left_in(path) == b"parent's\n"


def test_without_a_held_file_nothing_is_left(path):
    assert left_in(path) == b""
    beside(path).write_bytes(b"too short")
    assert left_in(path) == b""
