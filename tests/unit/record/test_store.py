"""Records on disk: writing, finding and reading them, also on a full or read-only disk."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkout import SUPPORT
from rankroom import config
from rankroom.errors import RecordError
from rankroom.record import owner
from rankroom.record.model import Owner, event_line
from rankroom.record.store import Store, new_id
from record_makers import finished_record, gone_process, log, names, start_record

AS_ROOT = os.geteuid() == 0
HOSTILE = ["plain", "with space", "quo'te\"s", "new\nline", "$HOME;`id`", "ünï-✓", "%s{0}", "-rf"]


def as_nobody(what: Callable[[], str]) -> str:
    """Return the result of `what()` in a child process that is not root."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if AS_ROOT:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, what().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as answer:
        return answer.read()


# --- home -----------------------------------------------------------------------------------------


def test_home_is_where_the_environment_says(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RANKROOM_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert Store().root == tmp_path / ".local/share/rankroom"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert Store().root == tmp_path / ".local/share/rankroom"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Store().root == tmp_path / "data/rankroom"
    monkeypatch.setenv("RANKROOM_HOME", "~/elsewhere")
    assert Store().root == tmp_path / "elsewhere"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_can_be_stored_under_any_home_path(tmp_path: Path, name: str):
    store, run = finished_record(tmp_path / name / "home", log(0, "hi\n"), source="print('hi')\n")
    assert store.load(run.id) == run
    assert store.source(run.id) == "print('hi')\n"
    assert [event["text"] for event in store.events(run.id)] == ["hi\n"]
    assert [r.id for r in store.newest()] == [run.id]


def test_only_the_user_can_look_into_a_record(tmp_path: Path):
    store, run = finished_record(tmp_path / "deep" / "home")
    paths = store.paths(run.id)
    for folder in (store.root, store.runs, paths.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    for file in (paths.run, paths.source, paths.events):
        assert file.stat().st_mode & 0o777 == 0o600


# --- writing --------------------------------------------------------------------------------------


def test_every_append_is_in_the_file_at_once(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    events = store.paths(run.id).events
    for n in range(1, 4):
        writer.append(log(0, "x\n", seq=n))
        assert events.read_bytes().count(b"\n") == n
    writer.close()
    writer.close()


def test_source_that_is_not_utf_8_is_escaped(tmp_path: Path):
    store, run = finished_record(tmp_path, source="x = '\ud800'")
    assert store.source(run.id) == "x = '\\ud800'"


@pytest.mark.parametrize("spoil", ["", "the folder", "runs"])
def test_a_record_created_from_a_prepared_folder_is_complete(tmp_path: Path, spoil: str):
    store, run, writer = start_record(tmp_path)
    writer.close()
    store.prepare()
    [blank] = store.runs.glob(".*.blank")
    if spoil:
        shutil.rmtree(blank if spoil == "the folder" else store.runs)
    run.id = new_id(run.start + 1)
    writer = store.create(run, "y = 2\n")
    writer.append(log(0, "hello\n"))
    writer.close()
    assert store.load(run.id).id == run.id
    assert store.source(run.id) == "y = 2\n"
    assert [event["text"] for event in store.events(run.id)] == ["hello\n"]
    assert not list(store.runs.glob(".*.blank"))
    assert stat.S_IMODE(store.paths(run.id).run.stat().st_mode) == 0o600


def test_replacing_run_json_leaves_no_temporary_file(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    paths = store.paths(run.id)
    assert paths.next_run.exists()
    # A killed process may leave this file, longer than the next content.
    paths.next_run.write_bytes(b"x" * 10_000)
    run.state = "done"
    writer.finish(run)
    assert store.load(run.id).state == "done"
    assert names(paths.folder) == ["events.jsonl", "run.json", "source.py"]


def test_an_id_is_used_once(tmp_path: Path):
    store, run = finished_record(tmp_path, log(0, "old\n"))
    with pytest.raises(RecordError, match="already there"):
        store.create(run, "new")
    assert store.source(run.id) == "x = 1\n"
    assert names(store.runs) == [run.id]


def test_readers_see_run_json_old_or_new_never_half(tmp_path: Path):
    store, run, writer = start_record(tmp_path, size=64)
    stop = threading.Event()
    problems: list[Exception] = []

    def look() -> None:
        while not stop.is_set():
            try:
                store.load(run.id)
            except Exception as error:
                problems.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for n in range(300):
        run.title = "x" * (n * 37 % 5000)
        writer.update(run)
    stop.set()
    thread.join()
    assert not problems
    assert names(store.paths(run.id).folder) == [
        "events.jsonl",
        "run.json",
        "source.py",
    ]
    writer.close()


def test_ids_sort_by_time_and_differ():
    start = 1_700_000_000_000_000
    ids = [new_id(start + n) for n in range(0, 3_000_000, 1_001)]
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    assert ids[0].startswith("20231114-221320-")
    assert len({len(i) for i in ids}) == 1


def test_a_full_disk_is_reported_and_damages_only_one_line(tmp_path: Path):
    """A file size limit stands in for the full disk: write() fails halfway in the same manner."""
    code = """
import resource, signal, sys
from record_makers import log, start_record
from rankroom.errors import RecordError
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store, run, writer = start_record(Path(sys.argv[1]))
writer.append(log(0, "before\\n", 1))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    writer.append(log(0, "x" * 5000, 2))
except RecordError as error:
    print(error)
try:
    writer.append(log(0, "x" * 5000, 2))
except RecordError as error:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(log(0, "after\\n", 3))
run.state = "done"
writer.finish(run)
"""
    where = os.pathsep.join([str(Path(config.__file__).parents[1]), str(SUPPORT)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        check=True,
    )
    (said,) = done.stdout.splitlines()
    assert "set RANKROOM_HOME to" in said and str(tmp_path) in said
    store = Store(tmp_path)
    events = store.events(store.find("last"))
    assert [event["text"] for event in events] == ["before\n", "after\n"]
    assert events.dropped == 1


def test_a_read_only_home_is_reported_in_one_line():
    with tempfile.TemporaryDirectory() as parent:  # tmp_path is closed to other users
        home = Path(parent) / "home"
        finished_record(home)
        for folder in (Path(parent), home, home / "runs"):
            folder.chmod(0o555)

        def write() -> str:
            try:
                start_record(home)
            except RecordError as error:
                return str(error)
            return "no error"

        said = as_nobody(write)
        for folder in (Path(parent), home, home / "runs"):
            folder.chmod(0o755)
    assert "Permission denied" in said and "\n" not in said
    assert str(home) in said and "set RANKROOM_HOME to" in said


def test_a_home_that_is_a_file_is_reported(tmp_path: Path):
    (tmp_path / "home").write_text("")
    with pytest.raises(RecordError, match="RANKROOM_HOME"):
        start_record(tmp_path / "home")


# --- finding --------------------------------------------------------------------------------------


def test_records_are_listed_newest_first_ignoring_other_files(tmp_path: Path):
    store = Store(tmp_path)
    assert store.newest() == []
    start = time.time_ns() // 1000
    made = [finished_record(tmp_path, start=start + n)[1].id for n in range(4)]
    (store.runs / "notes.txt").write_text("not a record")
    (store.runs / ".hidden").mkdir()
    (store.runs / "with space").mkdir()
    (store.runs / "link").symlink_to(store.runs / made[0])
    assert store.ids() == made[::-1]
    assert [run.id for run in store.newest(2)] == made[:1:-1]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\x00", b'{"version":1}', b"[" * 99_999]
)
def test_a_damaged_run_json_hides_no_other_record(tmp_path: Path, content: bytes):
    store, bad = finished_record(tmp_path)
    _, good = finished_record(tmp_path)
    store.paths(bad.id).run.write_bytes(content)
    listed = {run.id: run for run in store.newest()}
    assert set(listed) == {bad.id, good.id}
    assert listed[bad.id].state == "lost"
    assert str(store.paths(bad.id).run) in listed[bad.id].notes[0]
    with pytest.raises(RecordError, match="is damaged"):
        store.load(bad.id)


def test_a_record_without_run_json_is_damaged_not_missing(tmp_path: Path):
    store, run = finished_record(tmp_path)
    store.paths(run.id).run.unlink()
    with pytest.raises(RecordError, match="it is missing"):
        store.load(run.id)
    assert [r.state for r in store.newest()] == ["lost"]


def test_a_newer_record_is_refused_with_the_remedy(tmp_path: Path):
    store, run = finished_record(tmp_path, version=2)
    with pytest.raises(RecordError, match=r"record version 2.*pip install -U rankroom"):
        store.load(run.id)
    assert "newer" in store.newest()[0].notes[0]


def test_the_error_for_a_missing_id_suggests_similar_ids(tmp_path: Path):
    store, run = finished_record(tmp_path)
    wrong = run.id[:-1] + ("0" if run.id[-1] != "0" else "1")
    with pytest.raises(RecordError, match=run.id):
        store.load(wrong)
    with pytest.raises(RecordError, match="there are no records yet"):
        Store(tmp_path / "other").load(run.id)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "../x", "a/b", "/etc", "a\x00b", "a\n", "x" * 200, ".hidden", "ü", "a b"],
)
def test_an_invalid_run_id_is_never_turned_into_a_path(tmp_path: Path, name: str):
    with pytest.raises(RecordError, match="not a run id"):
        Store(tmp_path).paths(name)


def test_ids_can_be_abbreviated(tmp_path: Path):
    store = Store(tmp_path)
    with pytest.raises(RecordError, match="no record 'last'"):
        store.find("last")
    for name in ("20260101-000000-aaa111", "20260102-000000-bbb222", "20260102-000001-ccc333"):
        finished_record(tmp_path, id=name)
    assert store.find("last") == "20260102-000001-ccc333"
    assert store.find("20260101") == "20260101-000000-aaa111"
    assert store.find("bbb222") == "20260102-000000-bbb222"
    assert store.find("20260102-000001-ccc333") == "20260102-000001-ccc333"
    with pytest.raises(RecordError, match="matches 2 records"):
        store.find("20260102")
    for text in ("", "nothing", "../.."):
        with pytest.raises(RecordError, match="no record"):
            store.find(text)


# --- live or lost ---------------------------------------------------------------------------------


def test_a_run_is_live_while_its_owner_is(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    assert store.load(run.id).state == "running"
    writer.close()
    store, run, writer = start_record(tmp_path, owner=gone_process())
    assert store.load(run.id).state == "lost"
    assert json.loads(store.paths(run.id).run.read_bytes())["state"] == "running"
    writer.close()


def test_a_later_process_with_the_same_pid_is_not_the_owner(tmp_path: Path):
    mine = owner.this_process()
    assert mine.began > 0
    namesake = Owner(mine.host, mine.pid, mine.space, mine.began - 1)
    store, run, writer = start_record(tmp_path, owner=namesake)
    assert store.load(run.id).state == "lost"
    writer.close()


def test_an_owner_that_is_a_zombie_counts_as_gone(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    store, run, writer = start_record(
        tmp_path, owner=Owner(socket.gethostname(), process.pid, owner.this_process().space)
    )
    assert store.load(run.id).state == "lost"
    process.wait()
    writer.close()


def test_on_another_host_a_record_that_grows_is_live(tmp_path: Path):
    store, run, writer = start_record(tmp_path, owner=Owner("another-host", 1))
    assert store.load(run.id).state == "running"
    quiet = time.time() - 2 * owner.LIVE_WRITE_TIMEOUT_S
    os.utime(store.paths(run.id).events, (quiet, quiet))
    assert store.load(run.id).state == "lost"
    writer.append(log(0, "again\n"))
    assert store.load(run.id).state == "running"
    writer.close()


def test_this_process_returns_a_new_owner_object_each_time():
    owner.this_process().pid = -1
    assert owner.this_process().pid == os.getpid()


def test_a_fork_does_not_pass_for_its_parent():
    mine = owner.this_process()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if owner.this_process().pid == os.getpid() != mine.pid else 1)
    assert os.waitpid(pid, 0)[1] == 0


# --- reading --------------------------------------------------------------------------------------


def test_reading_in_pieces_gives_the_file_back(tmp_path: Path):
    lines = [log(0, "x" * (n * 7 % 90), seq=n) for n in range(200)]
    store, run = finished_record(tmp_path, *lines)
    for limit in (1, 50, 300, 1 << 20):
        got, after = b"", 0
        while (chunk := store.read(run.id, after, limit)).data:
            assert chunk.data.endswith(b"\n")
            assert len(chunk.data) <= max(limit, 200)
            got, after = got + chunk.data, chunk.next
        assert got == b"".join(lines)
        assert after == chunk.size == len(got)


def test_a_half_written_line_is_withheld_until_the_run_ends(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    whole, half = log(0, "whole\n"), b'{"kind":"log","rank":0,"se'
    writer.append(whole + half)
    chunk = store.read(run.id)
    assert (chunk.data, chunk.next, chunk.state) == (whole, len(whole), "running")
    assert chunk.size == len(whole)  # so a reader does not ask for more at once
    assert store.read(run.id, chunk.next).data == b""
    run.state = "failed"
    writer.finish(run)
    chunk = store.read(run.id, chunk.next)
    assert (chunk.data, chunk.state) == (half + b"\n", "failed")
    assert chunk.next == chunk.size == len(whole + half)
    assert store.read(run.id, chunk.next).data == b""
    events = store.events(run.id)
    assert len(list(events)) == 1 and events.dropped == 1


@pytest.mark.parametrize("live", [True, False])
def test_a_half_written_line_beyond_the_limit_is_read_after_the_end(tmp_path: Path, live: bool):
    store, run, writer = start_record(tmp_path)
    writer.append(b"x" * 5000)
    if not live:
        run.state = "done"
        writer.finish(run)
    chunk = store.read(run.id, 0, limit=100)
    assert chunk.data == (b"" if live else b"x" * 5000 + b"\n")
    writer.close()


def test_a_line_longer_than_the_limit_comes_whole(tmp_path: Path):
    big = log(0, "y" * 3_000_000)
    store, run = finished_record(tmp_path, log(0, "a\n"), big, log(0, "b\n"))
    first = store.read(run.id, 0, 1000)
    second = store.read(run.id, first.next, 1000)
    third = store.read(run.id, second.next, 1000)
    assert (first.data, second.data, third.data) == (log(0, "a\n"), big, log(0, "b\n"))


def test_a_line_longer_than_any_event_passes_in_pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("rankroom.record.tail.MAX_LINE_BYTES", 1000)
    store, run = finished_record(tmp_path, b"z" * 5000 + b"\n", log(0, "b\n"))
    after, pieces = 0, []
    while (chunk := store.read(run.id, after, 100)).data:
        pieces.append(chunk.data)
        after = chunk.next
    assert pieces[-1] == log(0, "b\n")
    assert all(len(piece) <= 1101 for piece in pieces)


def test_an_offset_outside_the_file_is_clamped(tmp_path: Path):
    store, run = finished_record(tmp_path, log(0, "a\n"))
    chunk = store.read(run.id, 10_000)
    assert chunk.data == b"" and chunk.next == chunk.size
    assert store.read(run.id, -5).data == log(0, "a\n")


def test_garbage_in_the_middle_is_skipped_and_counted(tmp_path: Path):
    good = [log(0, "a\n"), log(1, "b\n"), log(0, "c\n", 2)]
    bad = [b"garbage\n", b'{"kind":"log"}\n', b"\x00\x00\n", b"\n", b'{"kind":"log","ra{"k":1}\n']
    store, run = finished_record(tmp_path, good[0], *bad[:3], good[1], *bad[3:], good[2], b'{"tru')
    events = store.events(run.id)
    for _ in range(2):
        assert [e["text"] for e in events] == ["a\n", "b\n", "c\n"]
        assert events.dropped == 5


def test_a_garbage_line_beyond_all_bounds_counts_once(tmp_path: Path, monkeypatch):
    store, run = finished_record(tmp_path, log(0, "a\n"), b"g" * 5000 + b"\n", log(0, "b\n", 2))
    events = store.events(run.id)
    events._longest = 1000
    assert [e["text"] for e in events] == ["a\n", "b\n"]
    assert events.dropped == 1


def test_a_record_without_an_events_file_reads_as_empty(tmp_path: Path):
    store, run = finished_record(tmp_path)
    store.paths(run.id).events.unlink()
    assert store.read(run.id).data == b""
    assert list(store.events(run.id)) == []


def test_a_reader_beside_the_writer_gets_every_line_once(tmp_path: Path):
    store, run, writer = start_record(tmp_path)
    lines = [event_line("log", 0, n, n, stream="stdout", text=f"{n}\n") for n in range(3000)]

    def write() -> None:
        for n in range(0, 3000, 30):
            writer.append(b"".join(lines[n : n + 30]))
        run.state = "done"
        writer.finish(run)

    async def read() -> bytes:
        got, reader = b"", store.tail(run.id)
        while True:
            chunk = await reader.next(limit=5000, wait=5)
            got += chunk.data
            if not chunk.data and chunk.state != "running":
                return got

    thread = threading.Thread(target=write)
    thread.start()
    assert asyncio.run(read()) == b"".join(lines)
    thread.join()


def test_a_waiting_reader_notices_that_the_owner_died(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("rankroom.record.tail.OWNER_CHECK_INTERVAL_S", 0.05)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store, run, writer = start_record(tmp_path, owner=owner.owner_of(child.pid))

    async def wait() -> str:
        task = asyncio.create_task(store.tail(run.id).next(wait=120))
        await asyncio.sleep(0.2)
        assert not task.done()
        child.kill()
        return (await task).state

    assert asyncio.run(wait()) == "lost"
    child.wait()
    writer.close()
