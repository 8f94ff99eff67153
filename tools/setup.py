"""Set up this checkout: everything goes into .venv, and only what has changed is done again.

`tools/setup.py [--test]`; the Makefile calls it before every target. A step knows its
dependencies, and saves a fingerprint of them in .venv when it is done. Stdlib only, as it runs
first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import packages
from machine import (
    CLUSTER,
    ENDING,
    NODE,
    attempt,
    can_install,
    end_all,
    output,
    provide,
    run,
    succeeds,
)

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CACHE = Path(os.environ.get("RANKROOM_CACHE") or ROOT / ".cache")
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# The lock's versions are for Python 3.11 up to this one.
NEWEST_LOCKED = (3, 13)
IS_LOCKED = (3, 11) <= sys.version_info[:2] <= NEWEST_LOCKED
REQUIREMENTS = LOCK if IS_LOCKED else PROJECT
SCHEMA = ROOT / "lab" / "rankroom" / "record" / "record.schema.json"
EXTENSION = ROOT / "extension"
BUILT = ROOT / "lab" / "rankroom" / "labextension"
EXTRAS = ("lab", "torch", "tensorflow", "horovod", "quickstart", "dev")
TENSORFLOW = "tensorflow-cpu"


@dataclass(frozen=True)
class Step:
    """A step of the set-up; `depends` fingerprints its dependencies, `made` must exist afterwards.

    It waits for the steps `after`, and for no others.
    """

    name: str
    depends: Callable[[], str]
    do: Callable[[], None]
    made: Path
    needs: tuple[str, ...] = ()
    hint: str = ""
    after: tuple[str, ...] = ()

    @property
    def stamp(self) -> Path:
        return VENV / ".set-up" / self.name.replace(" ", "-")

    def due(self) -> bool:
        done = self.stamp.read_text() if self.stamp.is_file() else None
        return not self.made.exists() or done != self.depends()


def main() -> None:
    """Do the steps that are due, in parallel if possible."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every locale has a `…`
    os.chdir(ROOT)
    end_by_signal()
    with only_one():
        needs = [need for step in STEPS if step.due() for need in step.needs]
        if "--test" in sys.argv[1:]:
            needs += ["Chromium", *(CLUSTER if can_install() else ())]
        provide(needs)
        take_all(STEPS)
        compile_own_code()
        if "--test" in sys.argv[1:] and not has_tensorflow():
            sys.exit(TESTS_NEED_IT)


def take_all(steps: Sequence[Step]) -> None:
    """Do the steps that are due; the first one that fails ends those in progress."""
    begun: dict[str, Future[None]] = {}

    def work(step: Step) -> None:
        for name in step.after:
            begun[name].result()
        if step.due():
            take(step)

    try:
        with ThreadPoolExecutor(len(steps)) as pool:
            try:
                for step in steps:
                    begun[step.name] = pool.submit(work, step)
                done, _ = wait(begun.values(), return_when=FIRST_EXCEPTION)
            finally:
                ENDING.set()  # also for a command that a step begins at this moment
                end_all()
    finally:
        ENDING.clear()
    for each in done:
        each.result()


def end_by_signal() -> None:
    """Make a closed terminal end the commands, too: they run in process groups of their own."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit("set-up: ended; the next one goes on from here")

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def take(step: Step) -> None:
    """Do one step and write its stamp."""
    begun = time.monotonic()
    say(f"set-up: {step.name} … {step.hint}")
    step.do()
    step.stamp.parent.mkdir(exist_ok=True)
    step.stamp.write_text(step.depends())
    say(f"set-up: {step.name} done in {time.monotonic() - begun:.0f} s")


def say(line: str) -> None:
    """Print a line; on a terminal, over the line that Horovod's build keeps rewriting."""
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


# -- the steps


def make_venv() -> None:
    # A working environment is kept, however it was made. One that was moved here is not: the
    # commands in its bin/ contain its former path.
    if not (works() and here()):
        # The Python outside, in case this one is .venv's own.
        outside = getattr(sys, "_base_executable", sys.executable)
        run([outside, "-m", "venv", "--clear", VENV])


def install_packages() -> None:
    wanted: list[str | Path] = ["--requirement", LOCK]
    extras = set(EXTRAS)
    # A mirror of the index may not have the locked version yet.
    as_locked = IS_LOCKED and packages.offers(PYTHON, f"{TENSORFLOW}=={locked(TENSORFLOW)}")
    if not as_locked and not packages.offers(PYTHON, ranges(["tensorflow"])[-1]):
        if not packages.offers(PYTHON, "setuptools"):
            raise SystemExit(NO_INDEX)
        is_new = sys.version_info[:2] > NEWEST_LOCKED
        say(NO_TENSORFLOW.format(python=VERSION) + (TAKE_OLDER if is_new else ""))
        extras.remove("tensorflow")
    if not as_locked:
        say(f"set-up: Python {VERSION} takes the ranges of pyproject.toml, not requirements.lock")
        wanted = ["setuptools", "wheel", *ranges(extras)]
    packages.install(PYTHON, wanted, locked("torch"))


def compile_packages() -> None:
    # Unlike pip, uv does not compile what it installs: all ranks would do so at their first import.
    # This runs beside Horovod's build, with lower priority. Some packages contain files for other
    # Pythons, whose failures do not matter.
    command: list[str | Path] = ["nice", "-n", "19", PYTHON, "-m", "compileall", "-qq", "-j", "0"]
    attempt([*command, VENV / "lib" / f"python{VERSION}" / "site-packages"])


def compile_own_code() -> None:
    # Every time, as it is quick if nothing has changed. Where Python does not write bytecode by
    # itself, each process of each rank would otherwise compile what it imports.
    attempt([PYTHON, "-m", "compileall", "-qq", ROOT / "lab" / "rankroom"])


def install_node_modules() -> None:
    run(["npm", "ci", "--no-audit", "--no-fund"], EXTENSION, PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD="1")


def build_extension() -> None:
    shutil.rmtree(BUILT, ignore_errors=True)
    # The builder is JupyterLab's own, from .venv.
    run(["npm", "run", "build:prod"], EXTENSION, PATH=f"{VENV / 'bin'}:{os.environ['PATH']}")


def install_package() -> None:
    # pip removes the files of its last installation; through a link, those would be the build's.
    link = VENV / "share" / "jupyter" / "labextensions" / "rankroom"
    if link.is_symlink():
        link.unlink()
    options = ["--no-deps", "--no-build-isolation", "--editable", "."]
    run([PYTHON, "-m", "pip", "install", *options], HATCH_JUPYTER_BUILDER_SKIP_NPM="1")


def build_horovod() -> None:
    # Quick if the wheel is in the cache; else it takes minutes, and reports its progress. Rankroom
    # itself may not be installed yet.
    command: list[str | Path] = [PYTHON, "-m", "rankroom", "horovod", "build"]
    run(command, quiet=False, RANKROOM_CACHE=str(CACHE), PYTHONPATH=str(ROOT / "lab"))


STEPS = [
    Step(
        "environment",
        lambda: f"{VENV} {sys.version_info[:2]}",
        make_venv,
        PYTHON,
        ("Python's venv",),
    ),
    Step(
        "packages",
        lambda: wanted_packages(),
        install_packages,
        PYTHON,
        hint="some minutes",
        after=("environment",),
    ),
    Step("bytecode", lambda: wanted_packages(), compile_packages, PYTHON, after=("packages",)),
    Step(
        "node modules",
        lambda: text_of(EXTENSION / "package-lock.json"),
        install_node_modules,
        EXTENSION / "node_modules",
        (NODE, "npm"),
    ),
    Step(
        "extension",
        lambda: text_of(REQUIREMENTS, SCHEMA, *sources(EXTENSION)),
        build_extension,
        BUILT / "package.json",
        after=("node modules", "packages"),
    ),
    Step(
        "package",
        lambda: text_of(PROJECT, *sources(EXTENSION), *sources(BUILT)),
        install_package,
        VENV / "bin" / "rankroom",
        after=("extension",),
    ),
    Step(
        "horovod",
        lambda: wanted_packages() + text_of(*sources(ROOT / "lab" / "rankroom" / "horovod_build")),
        build_horovod,
        VENV / "bin" / "horovodrun",
        ("g++", "Python's headers"),
        after=("packages",),
    ),
]


# -- what steps depend on


def wanted_packages() -> str:
    return f"{text_of(REQUIREMENTS)} {os.environ.get(packages.TORCH, '')}".strip()


def text_of(*paths: Path) -> str:
    """Return a fingerprint of the files' names and contents, and of this Python's version."""
    digest = hashlib.sha256(sys.version.encode())
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, without those that tools have put there."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted({*folders} - {"node_modules", "lib", "lib-test", "__pycache__"})
        yield from (Path(here, file) for file in sorted(files) if not file.endswith(".tsbuildinfo"))


def works() -> bool:
    """Return whether .venv has a Python of this version, with pip."""
    if not PYTHON.is_file():
        return False
    version = "import pip, sys; print(*sys.version_info[:2])"
    return output(PYTHON, "-c", version).split() == [str(n) for n in sys.version_info[:2]]


def here() -> bool:
    """Return whether the commands in .venv/bin start the Python beside them."""
    pip = VENV / "bin" / "pip"
    return pip.is_file() and str(VENV) in pip.read_text(errors="replace").partition("\n")[0]


def locked(name: str) -> str:
    """Return the locked version of a package."""
    lines = LOCK.read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))


def has_tensorflow() -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    return succeeds(PYTHON, "-c", code)


def ranges(extras: Iterable[str]) -> list[str]:
    """Return the requirements in pyproject.toml, with TensorFlow's CPU package as in the lock."""
    # Python 3.10 has no tomllib; its pip does.
    code = """
import sys, pip._vendor.tomli as toml
project = toml.load(open("pyproject.toml", "rb"))["project"]
extras = [each for extra in sys.argv[1:] for each in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, sep="\\n")
"""
    found = output(PYTHON, "-c", code, *sorted(extras)).splitlines()
    return [each.replace("tensorflow>", f"{TENSORFLOW}>") for each in found]


# -- one at a time


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other set-up of this checkout is running."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / "set-up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("set-up: another one is going on; waiting for it …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


NO_INDEX = (
    "set-up: pip finds no package at all: is the network up, and does `pip config list` name an "
    "index that can be reached? Then run it again"
)
NO_TENSORFLOW = (
    "set-up: pip offers no release of TensorFlow for Python {python} on this machine, so ranks "
    "have PyTorch only"
)
TAKE_OLDER = "; with an older Python they have both: `make lab PYTHON=python3.13`"
TESTS_NEED_IT = "set-up: tests need TensorFlow, which is not there: take Python 3.11 to 3.13"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; the next one goes on from here")
