"""The end of a script: the work that is still running, and the state that it has changed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RANK = """
import asyncio, os, signal, sys, types
from rankroom.rank.script import run
from rankroom.rank.shell import RankShell

def said(kind, **fields):
    if kind == "mark" or fields.get("ename"):
        print(fields.get("name") or fields.get("ename"), flush=True)

def interrupt(number, frame):
    raise KeyboardInterrupt

async def rank():
    try:
        run(sys.argv[1], [], len(sys.argv) > 2)
    except BaseException as error:
        print(type(error).__name__, error)
    await asyncio.sleep(0.01)
    asyncio.get_event_loop().call_soon(print, "the rank goes on")
    await asyncio.sleep(0.01)

shell = RankShell.instance()
shell.attach(types.SimpleNamespace(run="a run", emit=said, emit_now=said))
signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGTERM, lambda number, frame: print("the rank ends"))
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
main = sys.modules["__main__"]
asyncio.run(rank())
assert sys.modules["__main__"] is main
os.kill(os.getpid(), signal.SIGTERM)
"""
LAST = ["the rank goes on", "the rank ends"]


def run_rank(path: Path | str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RANK, str(path), *more],
        capture_output=True, text=True, check=True, timeout=60, cwd=folder,
        env={"IPYTHONDIR": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip


def lines(tmp_path: Path, script: str) -> list[str]:
    (tmp_path / "train.py").write_text(script)
    return run_rank(tmp_path / "train.py", tmp_path).stdout.splitlines()


EXECUTOR = "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
SERVER = """
import atexit, multiprocessing, os, time
read, write = os.pipe()
def serve():
    os.write(write, b"!")
    time.sleep(100)
server = multiprocessing.get_context("fork").Process(target=serve)
server.start()
os.read(read, 1)  # before that, a signal may be lost: Python forgets those that come in a fork
def stop():
    server.terminate()
"""


@pytest.mark.parametrize(
    "script",
    [
        EXECUTOR + "pool = ProcessPoolExecutor(1); pool.submit(abs, 1).result()",
        EXECUTOR + "pool = ThreadPoolExecutor(1); pool.submit(abs, 1).result()",
        "import multiprocessing\nmanager = multiprocessing.get_context('fork').Manager()",
        SERVER + "atexit.register(stop)",
        SERVER + "atexit.register(server.terminate)",
    ],
    ids=["processes", "threads", "manager", "server", "server's method"],
)
def test_executors_and_child_processes_of_a_script_end_with_it(tmp_path: Path, script: str):
    assert lines(tmp_path, f"{script}\nprint('done')") == ["done", *LAST]


def test_executors_that_are_not_the_scripts_go_on(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1)\npool.submit(abs, 1).result()"
    )
    program = (
        "import concurrent.futures as f, multiprocessing.util as util, sys\n"
        "from rankroom.rank.script import run\n"
        "own = f.ThreadPoolExecutor(1)\nown.submit(abs, 1).result()\n"
        "util.Finalize(None, print, ['the end of the rank'], exitpriority=0)\n"
        "for _ in range(2): run(sys.argv[1], [])\n"
        "print('still', own.submit(abs, -1).result())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "train.py")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["still 1", "the end of the rank"]


SAVES = """
import atexit, pickle, threading, time
from concurrent.futures import ThreadPoolExecutor
class State: pass
def save(name, seconds):
    time.sleep(seconds)
    assert type(pickle.loads(pickle.dumps(State()))) is State
    print("saved by", name)
threading.Thread(target=save, args=("a thread", 1)).start()
ThreadPoolExecutor(1).submit(save, "an executor", 0.5).add_done_callback(lambda f: f.result())
atexit.register(save, "an exit function", 0)
"""
SAVED = ["saved by an executor", "saved by a thread", "saved by an exit function"]


@pytest.mark.parametrize("how", ["file", "zip", "module", "module's folder"])
def test_work_still_running_at_the_end_can_pickle_the_scripts_classes(tmp_path: Path, how: str):
    package = tmp_path / "mine"
    package.mkdir()
    for file in (tmp_path / "train.py", package / "train.py", package / "__main__.py"):
        file.write_text(SAVES)
    (package / "__init__.py").touch()
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as packed:
        packed.writestr("__main__.py", SAVES)
    paths = {"file": "train.py", "zip": "train.zip", "module": "mine.train"}
    more = ["-m"] if how.startswith("module") else []
    done = run_rank(paths.get(how, "mine"), tmp_path, *more)
    assert done.stdout.splitlines() == [*SAVED, *LAST], done.stderr


@pytest.mark.parametrize("end", ["raise ValueError('no data')", "raise SystemExit(3)"])
def test_a_script_error_is_reported_before_unfinished_threads_are_waited_for(
    tmp_path: Path, end: str
):
    (tmp_path / "train.py").write_text(f"{SAVES}\n{end}")
    done = run_rank(tmp_path / "train.py", tmp_path)
    error = "ScriptExit 3" if "Exit" in end else "ValueError no data"
    assert done.stdout.splitlines() == ["raised", *SAVED, error, *LAST]
    why = "exit status 3" if "Exit" in end else "ValueError: no data"
    assert (
        f"{why}: waiting for threads and processes that the script started (Thread-1 (save)"
        in done.stderr
    )


def test_an_interrupt_ends_the_wait_after_an_error(tmp_path: Path):
    script = (
        "import os, threading\n"
        "stuck = threading.Event()\n"
        "threading.Thread(target=lambda: stuck.wait(20) or os._exit(9)).start()\n"
        "threading.Timer(1, os.kill, (os.getpid(), 2)).start()\n"
        "import atexit\natexit.register(stuck.set)\n"
        "raise ValueError('no data')"
    )
    assert lines(tmp_path, script) == ["raised", "ValueError no data", *LAST]


def test_nothing_is_waited_for_after_an_interrupt(tmp_path: Path):
    script = (
        "import atexit, os, threading\nstuck = threading.Event()\n"
        "threading.Thread(target=lambda: stuck.wait(20) or os._exit(9)).start()\n"
        "atexit.register(stuck.set)\nos.kill(os.getpid(), 2)"
    )
    assert lines(tmp_path, script) == ["KeyboardInterrupt ", *LAST]


HANDLERS = """
import signal, os
def requeue(number, frame):
    print("requeued by", number)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
    signal.signal(number, requeue)
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.parametrize("end", ["", "raise ValueError('no data')", "raise SystemExit(3)"])
def test_signal_handlers_of_a_script_are_reset_at_its_end(tmp_path: Path, end: str):
    found = lines(tmp_path, HANDLERS + end)
    assert found[0] == "requeued by 10" and found[-2:] == LAST


def test_a_librarys_sigchld_handler_survives_the_end_of_the_script(tmp_path: Path):
    (tmp_path / "train.py").write_text("import library")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(
        "import signal\ndef died(number, frame): print('a worker died')\n"
        "signal.signal(signal.SIGCHLD, died)\nsignal.signal(signal.SIGTERM, died)"
    )
    program = (
        f"import os, signal, sys; sys.path.append({str(packages)!r})\n"
        "from rankroom.rank.script import run\nrun(sys.argv[1], [])\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "os.kill(os.getpid(), signal.SIGCHLD)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "train.py")],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "a worker died\n"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python makes no event loop of its own")
def test_a_script_has_its_own_event_loop_until_its_exit_functions_end(tmp_path: Path):
    script = (
        "import asyncio, atexit, os\n"
        "async def main(word): print(word, asyncio.current_task() is not None)\n"
        "loop = asyncio.get_event_loop()\n"
        "if child := os.fork(): os.waitpid(child, 0)\n"
        "else: raise SystemExit\n"
        "loop.call_later(0.2, loop.stop)\nloop.run_forever()\n"
        "loop.run_until_complete(main('runs'))\n"
        "atexit.register(lambda: loop.run_until_complete(main('ends')))"
    )
    assert lines(tmp_path, script) == ["runs True", "ends True", *LAST]


def test_library_functions_that_a_script_registers_run_at_its_end(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    found = lines(
        tmp_path,
        "import atexit, io, os, shutil\n"
        "@atexit.register\ndef look(): print(os.path.exists('kept'), file.closed)\n"
        "file = io.StringIO()\n"
        "atexit.register(file.close)\natexit.register(shutil.rmtree, 'kept')",
    )
    assert found == ["False True", *LAST]


SYSTEM = """
import os, pathlib, sys, threading, time
assert os.system("exit 3") == 3 << 8 and os.system(b"kill -9 $$") == 9
assert os.system(pathlib.Path("true")) == 0 and os.system(command="false") == 1 << 8
kept = os.open("/", os.O_RDONLY)
os.set_inheritable(kept, True)
assert os.system(f"test -e /proc/self/fd/{kept}") == 0
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    raise SystemExit(os.system("exit 0"))
threading.Timer(1, os.kill, (os.getpid(), 2)).start()
begun = time.monotonic()
try:
    os.system("echo $$ > pid; sleep 20; true")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 10)
try:
    os.kill(int(open("pid").read()), 0)
except ProcessLookupError:
    print("and gone")
"""


def test_a_command_of_os_system_can_be_interrupted(tmp_path: Path):
    assert lines(tmp_path, SYSTEM) == ["interrupted True", "and gone", *LAST]
