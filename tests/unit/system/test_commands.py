"""commands.py on real processes: how they end, what they print, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from rankroom.system.commands import Completed, run, run_sync


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_output_and_exit_status_are_returned() -> None:
    done = run_sync(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.ok, done.timed_out) == (3, False, False)
    assert sorted(done.output.split()) == ["err", "out"]
    assert done.tail(1) in ("out", "err")


def test_arguments_are_not_interpreted_by_a_shell() -> None:
    word = "a 'b' \"c\" $HOME `id` \n*"
    assert run_sync(["printf", "%s", word]).output == word


def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    seen: list[str] = []

    def see(line: str) -> None:
        seen.append(line)
        (tmp_path / line).touch()

    # It writes a line only after the line before has been seen.
    source = (
        "import os, sys, time\nfor i in range(3):\n    print(i, flush=True)\n"
        "    while not os.path.exists(f'{sys.argv[1]}/{i}'): time.sleep(0.01)"
    )
    assert run_sync([*python(source), str(tmp_path)], on_line=see, timeout=60).ok
    assert seen == ["0", "1", "2"]


def test_invalid_text_and_a_very_long_line_are_read() -> None:
    source = "import os\nos.write(1, b'\\xff\\n')\nfor _ in range(3): os.write(1, b'x' * (1 << 20))"
    output = run_sync(python(source)).output
    assert output[0] == "\ufffd" and output.count("x") == 3 << 20


def test_only_the_end_of_large_output_is_kept() -> None:
    source = "for i in range(200_000): print(i)"
    done = asyncio.run(run(python(source), keep=1000))
    assert len(done.output) == 1000 and done.output.endswith("199999\n")


def test_environment_and_working_directory_are_passed_on(tmp_path: Path) -> None:
    done = run_sync(
        python("import os; print(os.environ['WORD'], os.getcwd())"),
        env={**os.environ, "WORD": "here"},
        cwd=tmp_path,
    )
    assert done.output.split() == ["here", str(tmp_path)]


def test_a_timeout_ends_the_command_and_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = outlasting(f"sleep 600 & echo $! $$ > {pids}; wait", pids)
    assert done.timed_out and not done.ok
    assert_gone(pids)


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn = f"trap '' TERM; echo $$ > {pids}; sleep 600"
    assert outlasting(stubborn, pids).timed_out
    assert_gone(pids)


def test_a_cancelled_caller_ends_the_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def give_up() -> None:
        task = asyncio.create_task(run(["sh", "-c", f"echo $$ > {pids}; exec sleep 60"]))
        while not (pids.exists() and pids.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert_gone(pids)


def test_a_background_process_does_not_keep_the_caller_waiting() -> None:
    start = time.monotonic()
    done = run_sync(["sh", "-c", "echo started; sleep 60 & exit 4"])
    assert (done.returncode, done.output) == (4, "started\n")
    assert time.monotonic() - start < 10


def test_a_failed_command_leaves_no_process_running(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = run_sync(["sh", "-c", f"sleep 600 >/dev/null & echo $! > {pids}; exit 4"])
    assert done.returncode == 4
    assert_gone(pids)


def test_a_missing_program_raises_file_not_found_error() -> None:
    with pytest.raises(FileNotFoundError):
        run_sync(["rankroom-no-such-program"])


def outlasting(command: str, pids: Path) -> Completed:
    """Run a shell command until its timeout; repeat with a longer one if `pids` is not written yet.

    On a busy machine, the shell may take a while to start.
    """
    for timeout in (2.0, 20.0, 60.0):
        done = run_sync(["sh", "-c", command], timeout=timeout)
        if pids.exists() and pids.read_text():
            break
    return done


def assert_gone(pids: Path) -> None:
    deadline = time.monotonic() + 60
    left = [int(pid) for pid in pids.read_text().split()]
    while any(map(alive, left)):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_second_cancellation_kills_the_command_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def give_up() -> None:
        stubborn = ["sh", "-c", f"trap '' TERM; echo $$ > {pids}; sleep 600"]
        task = asyncio.create_task(run(stubborn, grace=600.0))
        while not (pids.exists() and pids.read_text()):
            await asyncio.sleep(0.01)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert_gone(pids)
