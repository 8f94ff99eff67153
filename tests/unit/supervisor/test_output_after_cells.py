"""Which record gets the output of a rank between its last cell and its end."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_recorder import Ranks

from rankroom.record.model import event_line
from rankroom.record.store import Store
from rankroom.supervisor.late_output import LateOutput
from rankroom.supervisor.recorder import Recorder
from rankroom.supervisor.runs import Runs
from record_makers import make_run


class Rank:
    """Rank 0: what it writes to disk, and which events arrive; and the runs of its cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder / "home")
        self.runs = Runs.__new__(Runs)
        self.runs._late = LateOutput(self.store, lambda rank: folder)
        self.runs._current = None
        self.runs._unclosed = set()
        self.seq = 0
        self.begin_process()

    def begin_process(self) -> None:
        for stream in ("stdout", "stderr"):
            (self.folder / stream).write_bytes(b"")

    def print(self, text: str, stream: str = "stdout") -> None:
        with (self.folder / stream).open("a") as file:
            file.write(text)

    def begin(self, size: int = 1) -> tuple[Recorder, Ranks]:
        """Send a cell to `size` ranks, of which this is one."""
        ranks = Ranks()
        run = Recorder(
            "1", make_run(size), ranks, self.store, lambda rank: self.folder, self._told  # type: ignore[arg-type]
        )  # fmt: skip
        run.start(epoch=0)
        self.runs._current, self.seq = run, 0
        return run, ranks

    def _told(self, run: Recorder) -> None:
        if run.is_over:
            self.runs._late.follow(run)

    def note(self, run: Recorder, state: str, arrives: Ranks | None = None, **more: Any) -> None:
        """Write a status event to the rank's spool; with `arrives`, also receive it there."""
        line = event_line("status", 0, self.seq, self.seq, state=state, **more)
        self.seq += 1
        file = self.folder / f"{run.id}.jsonl"
        at = file.stat().st_size if file.exists() else 0
        with file.open("ab") as opened:
            opened.write(line)
        if arrives:
            arrives.receive({"rank": 0, "at": at}, line)

    def known(self) -> dict[str, int]:
        return {name: (self.folder / name).stat().st_size for name in ("stdout", "stderr")}

    def texts(self, run: Recorder) -> list[str]:
        return [each["text"] for each in self.store.events(run.id) if each["kind"] == "log"]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def whole(rank: Rank, printed: str) -> Recorder:
    """Return a finished run, after which the rank has `printed` more."""
    run, ranks = rank.begin()
    rank.note(run, "running", ranks, spool=rank.known())
    rank.note(run, "ok", ranks)
    assert run.is_closed
    rank.print(printed)
    return run


def test_late_output_goes_to_the_last_run_once(rank: Rank):
    run = whole(rank, "later\n")
    rank.runs.take_late([0])  # as before a restart
    rank.print("what it says of its end\n")
    rank.runs.lose({0: "was restarted"})
    assert rank.texts(run) == ["later\n"]
    assert rank.store.load(run.id).lines == 1


def test_late_output_goes_to_a_begun_run_of_which_nothing_has_arrived(rank: Rank):
    before = whole(rank, "")
    run, _ = rank.begin()
    rank.note(run, "running", spool=rank.known())
    rank.print("about to crash\n")
    rank.runs.lose({0: "was killed by SIGSEGV"})
    assert rank.texts(before) == []
    assert rank.texts(run) == ["about to crash\n"] and run.info.state == "failed"


def test_late_output_goes_to_the_previous_run_if_the_cell_was_not_begun(rank: Rank):
    before = whole(rank, "later\n")
    run, _ = rank.begin()
    rank.runs.lose({0: "was killed by SIGKILL"})
    assert rank.texts(before) == ["later\n"]
    assert rank.texts(run) == [] and run.info.state == "failed"


def test_late_output_goes_to_a_run_that_only_other_ranks_still_execute(rank: Rank):
    before = whole(rank, "")
    run, ranks = rank.begin(size=2)
    rank.note(run, "running", ranks, spool=rank.known())
    rank.note(run, "ok", ranks)
    rank.print("later\n")
    rank.runs.lose({0: "was restarted"})
    assert rank.texts(run) == ["later\n"] and rank.texts(before) == []
    run.lose({1: "was killed by SIGKILL"})
    assert run.is_closed and run.info.lines == 1
    # The rank's next process has not run a cell.
    rank.begin_process()
    rank.print("Fatal error of the next process\n", "stderr")
    rank.runs.lose({0: "was killed by SIGSEGV"})
    assert rank.texts(run) == ["later\n"] and rank.texts(before) == []


def test_late_output_goes_to_the_run_before_a_forgotten_one(rank: Rank):
    """The empty cell after a run in a world of its own, for example, leaves no record."""
    run = whole(rank, "")
    hidden = whole(rank, "later\n")
    rank.runs._store = rank.store
    answered: list[dict[str, Any]] = []
    question = SimpleNamespace(
        content={"run": hidden.id}, answer=lambda **said: answered.append(said)
    )
    rank.runs._forget(question)  # type: ignore[arg-type]
    assert answered == [{}] and rank.store.ids() == [run.id]
    rank.runs.lose({0: "was restarted"})
    assert rank.texts(run) == ["later\n"]


def test_output_of_a_restarted_rank_before_any_cell_goes_to_no_run(rank: Rank):
    run = whole(rank, "")
    rank.runs.lose({0: "was restarted"})
    rank.begin_process()
    rank.print("of the next process\n")
    rank.runs.lose({0: "was killed by SIGSEGV"})
    assert rank.texts(run) == []


def test_late_output_does_not_recreate_a_removed_record(rank: Rank):
    run = whole(rank, "later\n")
    shutil.rmtree(rank.store.paths(run.id).folder)
    rank.runs.lose({0: "was restarted"})
    assert rank.store.ids() == []
