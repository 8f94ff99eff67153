"""`rankroom run SCRIPT`: a script on every rank, from a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankroom.cluster.lookup import running_clusters
from rankroom.record.store import Store
from record_makers import finished_record

pytestmark = pytest.mark.cluster

SCRIPT = """
import atexit, os, sys, time
from beside import NAME
if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    print(NAME, sys.argv[1:])
    print("of rank", rank, flush=True)
    if "wait" in sys.argv:
        time.sleep(1000)
    if "exit" in sys.argv and rank == 1:
        sys.exit(3)
    if "minus" in sys.argv and rank == 1:
        sys.exit(-1)
    if "refuse" in sys.argv and rank == 1:
        sys.exit("no data\\nsee the manual")
    if "stubborn" in sys.argv:
        while True:
            try:
                time.sleep(1000)
            except KeyboardInterrupt:
                pass
    if "later" in sys.argv:
        atexit.register(lambda: print("tidied up"))
    if "quit" in sys.argv and rank == 1:
        quit(4)
    if "raise" in sys.argv and rank == 1:
        raise ValueError("no data")
    if "die" in sys.argv and rank == 1:
        os._exit(7)
    if "kill" in sys.argv and rank == 1:
        os.kill(os.getpid(), 9)
    if "ask" in sys.argv:
        print("read", repr(sys.stdin.read()))
        input("how many? ")
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            print("child of", rank)
            sys.exit(5)
        print("its status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if "rest" in sys.argv:
        import concurrent.futures, multiprocessing, threading
        def save(name):
            time.sleep(1)
            print("saved by", name, flush=True)
        concurrent.futures.ThreadPoolExecutor(2).submit(save, "an executor")
        threading.Thread(target=save, args=("a thread",)).start()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        multiprocessing.get_context("fork").Process(target=save, args=("a process",)).start()
        if rank == 1:
            exit()
"""


@pytest.fixture
def script(tmp_path: Path, home: Path) -> Path:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    (folder / "beside.py").write_text("NAME = 'from beside'")
    (folder / "train.py").write_text(SCRIPT)
    return folder / "train.py"


def started(
    script: Path,
    *words: str,
    options: Sequence[str] = (),
    before: Sequence[str] = (),
    folder: Path | None = None,
) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-m", "rankroom", "run", "--ranks", "2", *options]
    argv = [*command, script.name, *words]
    cwd = folder or script.parent
    return subprocess.Popen(
        argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(script: Path, *words: str, options: Sequence[str] = ()) -> tuple[int, str, str]:
    process = started(script, *words, options=options)
    out, said = process.communicate(timeout=120)
    assert running_clusters() == []
    return process.returncode, out, said


def test_a_script_runs_on_all_ranks_with_its_arguments(script: Path):
    status, out, said = run(script, "--epochs", "3", "-o", "x y")
    assert status == 0, said
    assert "0–1 │ from beside ['--epochs', '3', '-o', 'x y']" in out
    assert "0 │ of rank 0" in out and "1 │ of rank 1" in out
    assert "2 ranks · done" in said and "train.py" in said
    record = Store().load(Store().find("last"))
    assert record.state == "done" and record.id in said


MODULE = """
import asyncio, sys
from . import NAME
async def main():
    await asyncio.sleep(0.01)
    return asyncio.current_task() is not None
print(NAME, __name__, __spec__.name, sys.argv[1:], asyncio.run(main()), asyncio.run(main()))
sys.exit(3 if sys.argv[1:] == ["fail"] else 0)
"""


def test_a_module_runs_and_begins_its_own_event_loop(script: Path):
    package = script.parent / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("NAME = 'of mine'")
    (package / "train.py").write_text(MODULE)
    process = started(Path("mine.train"), "-m", "x", options=["-m"], folder=script.parent)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "0–1 │ of mine __main__ mine.train ['-m', 'x'] True True" in out
    process = started(Path("mine.train"), "fail", options=["-m"], folder=script.parent)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert running_clusters() == []


def thorough(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("word", "status", "words"),
    [
        ("exit", 3, "failed on rank 1"),
        thorough("minus", 255, "failed on rank 1"),
        thorough("refuse", 1, "no data\nsee the manual\n●"),
        thorough("quit", 4, "failed on rank 1"),
        ("raise", 1, "ValueError: no data"),
        thorough("die", 7, "rank 1 ended with status 7"),
        ("kill", 137, "rank 1 was killed by SIGKILL"),
    ],
)
def test_the_exit_status_is_that_of_the_failed_rank(
    script: Path, word: str, status: int, words: str
):
    code, _, said = run(script, word)
    assert code == status and words in said, said


def test_threads_and_processes_started_by_the_script_are_awaited(script: Path):
    status, out, said = run(script, "rest")
    assert status == 0, said
    for name in ("an executor", "a thread", "a process"):
        assert f"0–1 │ saved by {name}" in out or out.count(f"saved by {name}") == 2, out


def test_atexit_functions_of_the_script_run_and_their_output_is_shown(script: Path):
    status, out, said = run(script, "later")
    assert status == 0, said
    assert "0–1 │ tidied up" in out or out.count("tidied up") == 2, out


@pytest.mark.thorough
def test_ranks_that_ignore_the_timeout_are_ended(script: Path):
    status, _, said = run(script, "stubborn", options=["--timeout", "1"])
    assert status == 130 and "ending the ranks" in said


def test_the_command_survives_sighup_under_nohup(script: Path):
    process = started(script, "wait", before=["nohup"])
    assert process.stdout is not None
    assert any("of rank" in line for line in process.stdout)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_the_record_names_the_runs_it_is_compared_with(script: Path):
    _, other = finished_record(Store().root, name="baseline", has_metrics=True)
    status, _, said = run(script, options=["--compare", "last", "--compare", "none"])
    assert status == 0, said
    assert "not compared: no record 'none' in" in said
    assert Store().load(Store().find("last")).compare == [other.id]


def test_a_child_forked_by_the_script_exits_with_its_own_status(script: Path):
    status, out, said = run(script, "fork")
    assert status == 0, said
    assert "0 │ child of 0" in out and "1 │ child of 1" in out and "its status 5" in out


def test_a_script_that_asks_for_input_fails_with_an_explanation(script: Path):
    status, out, said = run(script, "ask")
    assert status == 1 and "read ''" in out and "input() cannot read an answer on a rank" in said


def test_ranks_end_with_the_command(script: Path):
    process = started(script, "wait")
    assert process.stdout is not None
    assert any("of rank" in line for line in process.stdout)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert running_clusters() == []


def test_an_interrupt_ends_the_script_and_its_cluster(script: Path):
    process = started(script, "wait")
    assert process.stdout is not None
    # Once output of a rank is shown, there is a run to interrupt.
    shown = next(line for line in process.stdout if "of rank" in line)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "press Ctrl-C again" in said, (shown, said)
    assert running_clusters() == []


def test_a_missing_script_is_reported_before_ranks_start(script: Path):
    script.unlink()
    status, out, said = run(script)
    assert (status, out) == (1, "") and "there is no file train.py" in said
