"""The end of a notebook's cell: what is shown of its run, and what ■ does."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rankroom.cluster.base import AnyCluster
from rankroom.course import trial
from rankroom.errors import NoClusterError, RunFailed, SshError, UsageError
from rankroom.notebook import cell_source, magics, scaling_magic
from rankroom.notebook.magics import RankroomMagics
from rankroom.record.model import Failure, RunInfo, event_line
from record_makers import finished_record, make_run


class Begun:
    """A run in the given state; ■ is pressed while the run is being interrupted."""

    def __init__(self, state: str) -> None:
        self.info = make_run(2, state=state)
        self.id, self.prompts = self.info.id, []
        self.state, self.running = self.info.state, [] if state == "done" else [0, 1]

    def wait(self, seconds: float) -> bool:
        return self.state != "running"

    def interrupt(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it was not interrupted")


@pytest.fixture
def cells() -> RankroomMagics:
    return RankroomMagics(InteractiveShell())


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states in which a run was shown."""
    shown: list[str] = []

    def show(self: Any, bundle: dict[str, Any]) -> None:
        shown.append(bundle["state"])

    def bundle(run: RunInfo, *store: object) -> dict[str, Any]:
        return {"state": run.state}

    monkeypatch.setattr("rankroom.notebook.output.CellOutput.show", show)
    monkeypatch.setattr("rankroom.display.bundle", bundle)
    return shown


def run_on(monkeypatch: pytest.MonkeyPatch, run: Begun) -> None:
    cluster = SimpleNamespace(size=2, store=None, run=lambda *what, **more: run)
    monkeypatch.setattr(AnyCluster, "current", cluster)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Fail the test at a KeyboardInterrupt, which would otherwise stop pytest."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("the reader of the notebook sees a traceback of Rankroom's own")


def test_stop_pressed_again_gives_the_prompt_back(cells: RankroomMagics):
    run = Begun("running")
    with uninterrupted():
        followed = cells._follow(run, None, None, True)  # type: ignore[arg-type]
    assert followed.was_pressed and not followed.timed_out
    with pytest.raises(RunFailed, match="ranks 0–1 did not stop within 5 s"):
        cells._raise(run, None)  # type: ignore[arg-type]


def test_stop_pressed_again_ends_a_check(home: Path, monkeypatch: pytest.MonkeyPatch):
    run, shown = Begun("running"), []
    pressed = iter([True])

    def wait(seconds: float) -> bool:
        if next(pressed, False):
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(run, "wait", wait)
    exercise: Any = SimpleNamespace(name="ring.1", limit=60.0)
    with uninterrupted():
        verdict = trial.follow(exercise, run, shown.append)  # type: ignore[arg-type]
    assert verdict.state == "stopped" and shown == [run]


def test_stop_pressed_while_the_end_is_shown_fails_the_cell(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    run_on(monkeypatch, Begun("done"))
    bundle = magics.display.bundle

    def press(run: RunInfo, *store: object) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return bundle(run)

    monkeypatch.setattr("rankroom.display.bundle", press)
    with uninterrupted(), pytest.raises(RunFailed, match="interrupted after the run had ended"):
        cells.distributed("", "1")
    assert output == ["done"]


def test_stop_pressed_while_a_short_run_is_started_fails_the_cell(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    """It is over when its ranks would be interrupted; "Run All" stops all the same."""
    run = Begun("done")
    monkeypatch.setattr(run, "interrupt", lambda: False)
    run_on(monkeypatch, run)

    def start(*what: object, **more: object) -> Begun:
        os.kill(os.getpid(), signal.SIGINT)
        return run

    monkeypatch.setattr(AnyCluster.current, "run", start)
    with uninterrupted(), pytest.raises(RunFailed, match="interrupted after the run had ended"):
        cells.distributed("", "1")


def test_a_timeout_for_a_detached_cell_is_refused(cells: RankroomMagics):
    with pytest.raises(UsageError, match="--timeout is for cells that the notebook waits"):
        cells.distributed("--detach --timeout 5", "1")


def test_stop_pressed_while_a_detached_cell_begins_interrupts_it(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    run, told = Begun("running"), []
    monkeypatch.setattr(run, "interrupt", lambda: told.append("interrupted"))
    run_on(monkeypatch, run)

    def press(run: RunInfo) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return {"state": run.state}

    monkeypatch.setattr("rankroom.display.running_bundle", press)
    with uninterrupted():
        cells.distributed("--detach", "1")
    assert told == ["interrupted"]


def test_a_lost_run_is_reported_as_lost(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    run_on(monkeypatch, Begun("lost"))
    with pytest.raises(RunFailed, match="lost: the process that wrote this record ended"):
        cells.distributed("", "1")
    assert output == ["lost"]


def test_escape_sequences_are_removed_from_the_error_of_a_rank(cells: RankroomMagics):
    run = Begun("failed")
    run.running, run.info.failure = [], Failure(1, "ValueError", "\x1b]0;mine\x07no \x1b[31mdata")
    with pytest.raises(RunFailed) as told:
        cells._raise(run, None)  # type: ignore[arg-type]
    assert str(told.value) == "rank 1 failed first: ValueError: no data"


def test_printed_text_is_flushed_before_the_value_on_ranks_is_shown(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A kernel sends displays at once but buffers printed text, so it must be flushed first."""
    run_on(monkeypatch, Begun("done"))

    class Buffered(io.StringIO):
        def flush(self) -> None:
            output.append("printed")

    monkeypatch.setattr(sys, "stdout", Buffered())
    cells.distributed("", "1")
    assert output == ["done"]
    cells.distributed("1")
    assert output == ["done", "printed", "done"]


def test_a_batch_job_waits_for_detached_cells(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch
):
    run_on(monkeypatch, Begun("failed"))
    cells._run("x", "--detach --quiet")
    assert output == []
    monkeypatch.setenv("RANKROOM_BATCH", "/its/folder")
    with pytest.raises(RunFailed):
        cells._run("x", "--detach --quiet")
    assert output == ["failed"]


def test_the_end_of_a_run_that_cannot_be_interrupted_is_shown(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    run = Begun("running")

    def refuse() -> None:
        run.state = run.info.state = "lost"
        raise NoClusterError("cluster lesson is over")

    monkeypatch.setattr(run, "interrupt", refuse)
    monkeypatch.setattr("rankroom.display.running_bundle", lambda info: {"state": info.state})
    run_on(monkeypatch, run)
    with pytest.raises(RunFailed, match="lost: the process that wrote this record ended"):
        cells.distributed("--timeout 0.05", "1")
    assert output == ["running", "lost"]
    assert capsys.readouterr().out == "cluster lesson is over\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('--ranks ""', "cannot read '' as ranks"),
        ("--ranks 0, 1", "unexpected '1'"),
        ("--timeout 0", "--timeout 0: must be more than 0 seconds"),
        ("--timeout -5", "--timeout -5: must be more than 0 seconds"),
        ("--timeout nan", "--timeout nan: must be more than 0 seconds"),
    ],
)
def test_invalid_options_are_refused(
    cells: RankroomMagics, output: list[str], monkeypatch: pytest.MonkeyPatch, line: str, why: str
):
    run_on(monkeypatch, Begun("done"))
    with pytest.raises(UsageError, match=why):
        cells.distributed(line, "1")
    assert output == []


def test_the_runs_magic_without_records_shows_no_table(
    cells: RankroomMagics, home: Path, capsys: pytest.CaptureFixture[str]
):
    cells.runs("")
    assert capsys.readouterr().out == f"no runs yet in {home / 'runs'}\n"


def test_a_scaling_keeps_what_it_has_measured_if_the_next_run_cannot_start(home: Path):
    times = [
        event_line("status", 0, 0, 0, state="running"),
        event_line("status", 0, 1, 9, state="ok"),
    ]
    store, info = finished_record(home, *times, size=1)
    begun = [SimpleNamespace(info=info, id=info.id, state="done")]

    def run(*about: Any, **more: Any) -> Any:
        if not begun:
            raise SshError("the connection is gone")
        return begun.pop()

    cluster: Any = SimpleNamespace(run=run, store=store, size=1)
    outcome = scaling_magic.scale(
        cluster, "x", scaling_magic.Plan([1], 2, 0), False,
        lambda run, pressed: SimpleNamespace(was_pressed=False), lambda scaling, words: None,
    )  # fmt: skip
    assert list(outcome.scaling.sizes) and str(outcome.error) == "the connection is gone"


def test_a_warning_of_the_compiler_is_left_to_the_ranks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cell_source.check_syntax(InteractiveShell(), '"\\d"') == '"\\d"'
        assert cell_source.notes('"\\d"', None, 2) == []
