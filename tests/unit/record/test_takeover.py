"""A record without a writer gets exactly one new one, which first ends a half-written line."""

import errno
import multiprocessing
from pathlib import Path

import pytest

from rankroom.errors import RecordError
from rankroom.record.model import Owner, event_line
from rankroom.record.owner import is_live, this_process
from rankroom.record.store import Store
from rankroom.record.takeover import take_over
from record_makers import gone_process, log, start_record


def left_alone(root, *lines, **fields):
    """The id of a record whose writer is gone."""
    _, run, writer = start_record(root, owner=gone_process(), **fields)
    writer.append(b"".join(lines))
    writer.close()
    return run.id


def test_a_writer_on_another_host_is_left_alone(tmp_path):
    owner = gone_process()
    owner.host = owner.space = "elsewhere"
    _, run, writer = start_record(tmp_path, owner=owner)
    writer.close()
    with pytest.raises(RecordError, match="another process"):
        take_over(Store(tmp_path), run.id)


def test_a_remote_writer_that_is_known_to_be_gone_is_replaced_once(tmp_path):
    """The record was written a moment ago, so the run still counts as running."""
    owner = gone_process()
    owner.host = owner.space = "elsewhere"
    store, run, writer = start_record(tmp_path, owner=owner)
    writer.close()
    assert store.load(run.id).state == "running"
    _, first = take_over(store, run.id, owner)
    with pytest.raises(RecordError, match="another process"):
        take_over(store, run.id, owner)  # it now has another writer
    first.close()


def test_the_new_writer_owns_the_run_and_sets_it_back_to_running(tmp_path):
    run_id = left_alone(tmp_path, lines=7, notes=["kept"])
    store = Store(tmp_path)
    run, writer = take_over(store, run_id)
    assert (run.state, run.lines, run.notes) == ("running", 0, ["kept"])
    assert {rank.state for rank in run.ranks} == {"running"}
    assert store.load(run_id).owner == this_process()
    assert store.load(run_id).state == "running"
    writer.close()


def test_a_half_written_line_is_ended_not_continued(tmp_path):
    run_id = left_alone(tmp_path, log(0, "one\n"), b'{"kind":"log","rank":0,"seq":2,"te')
    store = Store(tmp_path)
    # A reader got the half line, too, as there was no writer to finish it.
    after = store.read(run_id).next
    _, writer = take_over(store, run_id)
    writer.append(log(0, "two\n", seq=2))
    writer.close()
    assert [event["text"] for event in store.events(run_id)] == ["one\n", "two\n"]
    assert event_line("log", 0, 2, 1000, stream="stdout", text="two\n") in store.tail(
        run_id, after
    ).read().data.splitlines(keepends=True)


def try_it(root, run_id, won, over):
    try:
        take_over(Store(root), run_id)
        won.put(1)
    except RecordError:
        won.put(0)
    over.wait(60)  # if it exited, the record would be free for the next process


def test_of_many_at_once_one_becomes_the_writer(tmp_path):
    run_id = left_alone(tmp_path)
    fork = multiprocessing.get_context("fork")
    won, over = fork.Queue(), fork.Event()
    tried = [fork.Process(target=try_it, args=(tmp_path, run_id, won, over)) for _ in range(6)]
    for process in tried:
        process.start()
    assert sum(won.get(timeout=120) for _ in tried) == 1
    over.set()
    for process in tried:
        process.join()


def test_a_remote_run_whose_events_cannot_be_read_counts_as_live(tmp_path, monkeypatch):
    store, run, writer = start_record(tmp_path, owner=Owner("another-host", 1))
    events = store.paths(run.id).events
    assert not is_live(run, events.with_name("none"))

    def refuse(self, **kwargs):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert is_live(run, events)
    writer.close()
