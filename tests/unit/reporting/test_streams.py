"""The spool: every byte kept, in order, with the time it was written, whatever wrote it."""

import codecs
import ctypes
import io
import os
import subprocess
import sys
import threading
import time

import pytest

from rankroom.reporting import streams
from rankroom.reporting.streams import MAX_PIECE_BYTES, RankStream, Spooled


@pytest.fixture
def spool(tmp_path):
    """A spool behind a descriptor other than stdout."""
    fd = os.open(os.devnull, os.O_WRONLY)
    made = Spooled(tmp_path / "stdout", fd)
    yield made
    os.close(fd)


def text_of(spool, final=True):
    return "".join(piece.text for piece in spool.read(final))


def test_a_line_is_on_disk_when_print_returns(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("hello", file=stream)
    assert spool.path.read_bytes() == b"hello\n"


def test_half_a_line_waits_for_its_end_or_a_flush(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("half", end="", file=stream)
    assert spool.path.read_bytes() == b""
    stream.flush()
    assert spool.path.read_bytes() == b"half"


def test_c_level_writes_stand_between_python_ones(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("one", file=stream)
    os.write(spool.fd, b"two\n")
    stream.buffer.write(b"three\n")
    print("four", file=stream)
    assert text_of(spool) == "one\ntwo\nthree\nfour\n"


def test_bytes_that_are_no_utf8_stay_legible(spool):
    os.write(spool.fd, b"a\xff\xfeb\x00c\n")
    assert text_of(spool) == "a\\xff\\xfeb\x00c\n"


def test_a_character_split_between_two_reads_is_joined(spool):
    euro = "€".encode()
    os.write(spool.fd, b"x" + euro[:2])
    first = list(spool.read())
    assert [piece.text for piece in first] == ["x"]
    assert first[0].to == 1
    os.write(spool.fd, euro[2:] + b"\n")
    assert text_of(spool) == "€\n"


def test_a_character_never_finished_is_shown_at_the_end(spool):
    os.write(spool.fd, "€".encode()[:2])
    assert text_of(spool, final=True) == "\\xe2\\x82"


def test_a_surrogate_does_not_raise(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("bad \ud800 end", file=stream)
    assert "bad" in text_of(spool)


def test_a_huge_line_comes_in_bounded_pieces(spool):
    os.write(spool.fd, b"x" * (3 * MAX_PIECE_BYTES) + b"\n")
    pieces = list(spool.read())
    assert max(len(piece.text) for piece in pieces) <= MAX_PIECE_BYTES
    assert sum(len(piece.text) for piece in pieces) == 3 * MAX_PIECE_BYTES + 1


def test_each_slow_print_has_its_own_time(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    stamps = []
    for i in range(5):
        before = time.time_ns() // 1000
        print(i, file=stream)
        stamps.append((before, time.time_ns() // 1000))
        time.sleep(0.01)
    pieces = list(spool.read())
    assert [piece.text for piece in pieces] == [f"{i}\n" for i in range(5)]
    for piece, (before, after) in zip(pieces, stamps, strict=True):
        assert before <= piece.t <= after


def test_a_flood_makes_few_pieces(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    begun = time.monotonic()
    for i in range(20_000):
        print("line", i, file=stream)
    took = time.monotonic() - begun
    pieces = list(spool.read())
    assert "".join(piece.text for piece in pieces).count("\n") == 20_000
    assert len(pieces) <= took / (streams.TIME_MARK_INTERVAL_NS / 1e9) + 2


@pytest.fixture
def trims(tmp_path, monkeypatch):
    """Trim spools after a few bytes; skip tests where the file system has no holes."""
    with (tmp_path / "holes").open("wb") as file:
        file.write(bytes(1 << 16))
        file.flush()
        if not streams.punch_hole(file.fileno(), 0, 1 << 16):
            pytest.skip("no holes in files here")
    monkeypatch.setattr(streams, "TRIM_THRESHOLD_BYTES", 10)


def test_trimming_frees_the_disk_space_of_what_was_read(spool, trims):
    assert not spool.trim()
    os.write(spool.fd, b"0123456789\n" * 100_000)
    assert not spool.trim(), "not read yet"
    assert len(text_of(spool)) == 1_100_000
    os.write(spool.fd, b"unread\n")
    full = spool.path.stat().st_blocks
    assert spool.trim()
    assert spool.path.stat().st_blocks < full / 10
    assert not spool.trim(), "nothing new"
    assert spool.position == 1_100_000 and text_of(spool) == "unread\n"


def test_child_processes_keep_printing_after_the_spool_is_trimmed(spool, trims):
    """Trimming does not replace the file that they hold open, so their output is kept, too."""
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=spool.fd, text=True
    ) as child:
        assert child.stdin is not None
        said = ""
        for i in range(5):
            print(f"line {i} of a child", file=child.stdin, flush=True)
            while not said.endswith(f"line {i} of a child\n"):
                said += text_of(spool)
            assert spool.trim()
            assert spool.path.stat().st_ino == os.fstat(spool.fd).st_ino
    assert said == "".join(f"line {i} of a child\n" for i in range(5))


def test_trimming_loses_no_output_of_printing_threads(spool, trims):
    """Python and C code print while the spool is being trimmed."""
    stream = RankStream(spool, "stdout", lambda: None)

    def prints(name: str) -> None:
        for i in range(2_000):
            print(f"{name} {i}", file=stream)
            os.write(spool.fd, f"c{name} {i}\n".encode())

    threads = [threading.Thread(target=prints, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    said, trimmed = "", 0
    while any(thread.is_alive() for thread in threads):
        said += text_of(spool, final=False)
        trimmed += spool.trim()
    stream.flush()
    said += text_of(spool)
    lines = said.splitlines()
    for name in ("a", "b", "ca", "cb"):
        assert [each for each in lines if each.startswith(f"{name} ")] == [
            f"{name} {i}" for i in range(2_000)
        ]
    assert trimmed


def test_output_after_a_child_truncates_the_spool_is_kept(spool):
    """`echo text > /dev/stderr` opens the file behind the descriptor, and empties it."""
    os.write(spool.fd, b"before\n" * 100)
    assert text_of(spool) == "before\n" * 100
    place = f"/dev/fd/{spool.fd}"
    for said in ("one", "two"):
        child = subprocess.run(
            ["sh", "-c", f"echo {said} > {place}"], pass_fds=[spool.fd], check=True
        )
        assert child.returncode == 0
        os.write(spool.fd, b"after\n")
        assert text_of(spool) == f"{said}\nafter\n"
        assert spool.position == spool.path.stat().st_size


def test_spools_are_not_trimmed_where_files_cannot_have_holes(spool, monkeypatch):
    monkeypatch.setattr(streams, "TRIM_THRESHOLD_BYTES", 4)
    monkeypatch.setattr(streams, "punch_hole", lambda *about: False)
    os.write(spool.fd, b"first\n")
    assert text_of(spool) == "first\n"
    assert not spool.trim()
    os.write(spool.fd, b"second\n")
    assert text_of(spool) == "second\n"
    assert spool.path.read_bytes() == b"first\nsecond\n"


def test_a_forked_child_prints_into_the_same_spool(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("parent", file=stream)
    pid = os.fork()
    if pid == 0:
        stream.after_fork()
        print("child", file=stream)
        os._exit(0)
    os.waitpid(pid, 0)
    assert text_of(spool) == "parent\nchild\n"


def test_writing_something_else_than_text_is_refused(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    with pytest.raises(TypeError, match="must be str, not bytes"):
        stream.write(b"x")


def test_a_cell_cannot_close_or_take_away_a_ranks_stdout(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    stream.close()
    io.TextIOWrapper(stream.buffer, "utf-8").write("over it\n")  # freed at once, which closes it
    codecs.getwriter("utf-8")(stream.detach()).write("detached\n")
    print("still here", file=stream)
    assert text_of(spool) == "over it\ndetached\nstill here\n"


def test_a_forked_child_forgets_the_half_line_of_its_parent(spool):
    stream = RankStream(spool, "stdout", lambda: None)
    print("half", end="", file=stream)
    pid = os.fork()
    if pid == 0:
        stream.after_fork()
        print("child", file=stream)
        os._exit(0)
    os.waitpid(pid, 0)
    print(" and half", file=stream)
    assert text_of(spool) == "child\nhalf and half\n"


def test_threads_that_print_lose_nothing(spool):
    stream = RankStream(spool, "stdout", lambda: None)

    def work(name):
        for i in range(2_000):
            stream.write(f"{name} {i}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        stream.flush()  # as the reporting thread does
    lines = text_of(spool).splitlines()
    for name in "abcd":
        mine = [line for line in lines if line.startswith(name)]
        assert mine == [f"{name} {i}" for i in range(2_000)]


@pytest.fixture
def disk(monkeypatch):
    """A disk that may be full for os.write and os.pwrite: `disk.room` bytes are left, or any number
    if None."""

    class Disk:
        room = None

        def limited(self, write):
            def wrapper(fd, data, *at):
                if self.room is None:
                    return write(fd, data, *at)
                data = bytes(data)[: self.room]
                if not data:
                    raise OSError(28, "No space left on device")
                self.room -= len(data)
                return write(fd, data, *at)

            return wrapper

    made = Disk()
    monkeypatch.setattr(os, "write", made.limited(os.write))
    monkeypatch.setattr(os, "pwrite", made.limited(os.pwrite))
    return made


@pytest.mark.parametrize("room", [0, 3, 12])
@pytest.mark.parametrize("held", [True, False])
def test_a_full_disk_loses_no_line_and_fails_no_print(spool, disk, room, held):
    if not held:
        spool._buffer.leave()
    stream = RankStream(spool, "stdout", lambda: None)
    print("line 0", file=stream)
    assert text_of(spool) == "line 0\n"
    disk.room = room
    for i in range(1, 4):
        print("line", i, file=stream)
    first = list(spool.read())
    assert "".join(piece.text for piece in first) == "line 1\nline 2\nline 3\n"
    assert spool.trouble.startswith("No space left on device: ")
    # Reading on in the file from here finds nothing that was already reported.
    assert first[-1].to == spool.path.stat().st_size == 7 + room
    print("line 4", file=stream)
    disk.room = None
    print("line 5", file=stream)
    assert text_of(spool) == "line 4\nline 5\n"
    assert spool.trouble == "" and text_of(spool) == ""
    print("line 6", file=stream)
    assert spool.path.read_bytes().endswith(b"line 6\n"), "it is kept on disk again"
    assert text_of(spool) == "line 6\n"


def test_a_flood_on_a_full_disk_is_complete(spool, disk):
    stream = RankStream(spool, "stdout", lambda: None)
    text = ""
    for i in range(30_000):
        if i == 10_000:
            disk.room = 1_000
        if i == 20_000:
            disk.room = None
        print("line", i, file=stream)
        if i % 7_000 == 0:
            text += text_of(spool, final=False)
    text += text_of(spool)
    assert text == "".join(f"line {i}\n" for i in range(30_000))


def test_a_clock_that_is_set_back_keeps_no_output_waiting(spool, monkeypatch):
    woken = []
    stream = RankStream(spool, "stdout", lambda: woken.append(True))
    now = time.time_ns()
    monkeypatch.setattr(streams.time, "time_ns", lambda: now)
    print("before", file=stream)
    hour = 3600 * 10**9
    for each in range(5):
        monkeypatch.setattr(streams.time, "time_ns", lambda at=each: now - hour + at * 10**7)
        print("after", file=stream)
    assert len(woken) == len(spool.marks) == 6


def test_output_between_cells_uses_a_bounded_number_of_time_marks(spool, monkeypatch):
    monkeypatch.setattr(streams, "MAX_TIME_MARKS", 100)
    stream = RankStream(spool, "stdout", lambda: None)
    begin = time.time_ns()
    for second in range(1000):
        now = begin + second * 10**9
        monkeypatch.setattr(streams.time, "time_ns", lambda at=now: at)
        print(second, file=stream)
        assert len(spool.marks) <= 100
    pieces = [*spool.read()]
    assert "".join(each.text for each in pieces) == "".join(f"{n}\n" for n in range(1000))
    for each in pieces:  # the remaining time marks are not later than their lines
        assert each.t <= begin // 1000 + 1_000_000 * int(each.text.split()[0])


def test_a_flood_is_read_in_turns(spool, monkeypatch):
    monkeypatch.setattr(streams, "MAX_READ_BYTES", 2 * MAX_PIECE_BYTES)
    euros = "€" * MAX_PIECE_BYTES + "\n"  # reads end within characters
    os.write(spool.fd, euros.encode())
    turns = []
    while turn := text_of(spool):
        turns.append(turn)
    assert len(turns) == 2 and "".join(turns) == euros


def test_c_files_that_another_thread_reads_are_not_waited_for():
    libc = ctypes.CDLL(None)
    libc.popen.restype = libc.pclose.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.popen(b"sleep 1", b"r"))
    reader = threading.Thread(target=libc.fgetc, args=[file])
    reader.start()
    time.sleep(0.2)
    flushing = threading.Thread(target=streams.CStdio().flush)
    flushing.start()
    flushing.join(0.4)
    waited = flushing.is_alive()
    reader.join()
    libc.pclose(file)
    assert not waited
