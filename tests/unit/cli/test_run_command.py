"""What `rankroom run` shows of a run, and when it ends it; tested without ranks."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from rankroom.cli import main, run_command
from rankroom.errors import NoClusterError, StartError, UnreadableRecordError
from rankroom.record.model import Failure, Hang, Place
from rankroom.record.tail import Chunk, Tail
from record_makers import log, start_record


class Begun:
    """A run whose ranks do nothing."""

    def __init__(self, root: Path) -> None:
        self.store, self.info, self._writer = start_record(root)
        self.id = self.info.id
        self.events: list[dict[str, Any]] = []
        self.interrupted = 0

    def interrupt(self) -> None:
        self.interrupted += 1

    def wait(self, seconds: float) -> bool:
        time.sleep(0 if self.info.state != "running" else seconds)
        return self.info.state != "running"

    def say(self, *lines: bytes) -> None:
        self._writer.append(b"".join(lines))

    def end(self, state: str = "done", **fields: Any) -> None:
        for name, value in {"state": state, "end": self.info.start + 9, **fields}.items():
            setattr(self.info, name, value)
        self._writer.finish(self.info)

    def profile(self) -> SimpleNamespace:
        return SimpleNamespace(diagnosis="")

    def follow(self, timeout: float | None = None) -> int:
        return run_command._follow(SimpleNamespace(store=self.store), self, timeout)  # type: ignore[arg-type]


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    return Begun(tmp_path)


def stalled(words: str, seconds: int, line: int = 1) -> Hang:
    waits = Place([0], "waits", f"waits in {words}", words)
    computes = Place([1], "busy", f"is at cell line {line}", None, "x += 1")
    return Hang(0, f"rank 0 waits in {words} for {seconds} s", [waits, computes])


def test_a_stall_is_reported_again_only_if_its_cause_changes_or_recurs(
    begun: Begun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    hangs = [
        stalled("allreduce", 4), stalled("allreduce", 5, 2), stalled("barrier", 6), None,
        stalled("barrier", 4),
    ]  # fmt: skip

    def pause(self: Tail, *seconds: float) -> None:
        if not hangs:
            begun.end()
            return
        begun.info.hang = hangs.pop(0)

    monkeypatch.setattr(Tail, "pause", pause)
    assert begun.follow() == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("!")]
    assert told == [
        "! rank 0 waits in allreduce for 4 s",
        "! rank 0 waits in barrier for 6 s",
        "! rank 0 waits in barrier for 4 s",
    ]


def test_ranks_that_do_not_take_the_interrupt_of_a_timeout_are_ended(
    begun: Begun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_command, "INTERRUPT_TIMEOUT_S", 0.3)
    ending = threading.Timer(20, begun.end)  # a hang fails the test
    ending.start()
    assert begun.follow(timeout=0.1) == run_command.INTERRUPTED_EXIT_STATUS
    ending.cancel()
    assert begun.interrupted == 1 and begun.info.state == "running"
    assert "ending the ranks" in capsys.readouterr().err


def test_an_interrupt_that_cannot_be_delivered_is_reported_in_one_line(
    begun: Begun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise NoClusterError("cluster lesson is over")

    monkeypatch.setattr(run_command, "INTERRUPT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(begun, "interrupt", refuse)
    assert begun.follow(timeout=0.1) == run_command.INTERRUPTED_EXIT_STATUS
    said = capsys.readouterr().err.splitlines()
    assert said == ["cluster lesson is over", "ending the ranks"]


@pytest.mark.parametrize("seconds", ["0", "-5"])
def test_a_timeout_that_is_not_positive_is_refused(seconds: str):
    done = CliRunner().invoke(main, ["run", "--timeout", seconds, "no-such.py"])
    assert done.exit_code == 2 and "--timeout" in done.output


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), UnreadableRecordError("cannot be read")]
)
def test_a_briefly_unreadable_record_is_read_to_its_end(
    begun: Begun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    error: Exception,
):  # fmt: skip
    read, failures = Tail.read, 4

    def fail(self: Tail, limit: int = 1 << 20) -> Chunk:
        nonlocal failures
        failures -= 1
        if failures == 2:
            begun.say(log(0, "saved\n"))
            begun.end()
        if failures >= 0:
            raise error
        return read(self, limit)

    monkeypatch.setattr(Tail, "read", fail)
    assert begun.follow() == 0
    assert "0 │ saved" in capsys.readouterr().out


def test_a_record_that_stays_unreadable_is_waited_for_while_the_run_is_on(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_command, "READ_RETRY_TIMEOUT_S", 0.1)

    def fail(self: Tail, limit: int = 0) -> Chunk:
        raise UnreadableRecordError("cannot be read")

    monkeypatch.setattr(Tail, "read", fail)
    threading.Timer(0.5, begun.end).start()
    with pytest.raises(UnreadableRecordError):
        begun.follow()
    assert begun.info.state == "done"


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        ("3", 3, ""),
        ("-1", 255, ""),
        ("257", 1, ""),
        ("no data in x\nsee y", 1, "no data in x\nsee y\n"),
    ],
)
def test_exit_status_and_message_of_a_script_are_as_with_python(
    begun: Begun, capsys: pytest.CaptureFixture[str], code: str, status: int, shown: str
):
    about = {"ename": "ScriptExit", "evalue": code, "traceback": ["ScriptExit"]}
    begun.events = [{"kind": "error", "rank": 1, **about}]
    begun.end("failed", failure=Failure(1, "ScriptExit", code))
    assert begun.follow() == status
    assert capsys.readouterr().err.startswith(f"{shown}●")


@pytest.mark.parametrize(
    ("how", "status"),
    [("ended with status 0", 1), ("ended with status 3", 3), ("was killed by SIGKILL", 137)],
)
def test_the_exit_status_of_a_lost_rank_is_never_that_of_success(
    begun: Begun, how: str, status: int
):
    begun.end("failed", failure=Failure(1, "RankLost", how))
    assert begun.follow() == status


def test_a_ranks_error_has_no_terminal_escapes(begun: Begun, capsys: pytest.CaptureFixture[str]):
    about = {"ename": "ValueError", "evalue": "x", "traceback": ["f\x1b]0;mine", "ValueError"]}
    begun.events = [{"kind": "error", "rank": 1, **about}]
    begun.end("failed", failure=Failure(1, "ValueError", "x"))
    begun.follow()
    said = capsys.readouterr().err
    assert "\x1b]" not in said and said.startswith("f\nValueError\n●")


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_run_keeps_sighup_ignored_under_nohup(
    handlers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*what: Any, **more: Any) -> None:
        raise StartError("not here")

    monkeypatch.setattr(run_command, "start_cluster", refuse)
    (tmp_path / "train.py").touch()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    done = CliRunner().invoke(main, ["run", str(tmp_path / "train.py")])
    assert "not here" in done.output
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGTERM)), "its ranks end with it"
