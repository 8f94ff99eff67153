"""Try the wheel in new environments, with other versions of PyTorch, TensorFlow and Keras.

`tools/versions.py [--only PYTHON,TORCH,TENSORFLOW]… [--write docs/pythons.md]`. `newest` is what
pip chooses, `-` leaves a framework out. For each: install both with pip, then the wheel, build
Horovod, check it on two ranks (`rankroom horovod check`), and train the quickstart, which needs
both (`rankroom demo`). Prints a line for each when it has ended, with the message that a user gets
if it fails. With --write, updates the table in the document, which keeps its rows of other
versions, and lists the wheels that exist for Pythons that are not on this machine. Exits with 1 if
a step failed, except if pip finds no such version.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import interpreters
from interpreters import PYTHONS, ROOT, find, run, size
from machine import output

NEWEST, NONE = "newest", "-"
# The oldest versions that are still in use, one in between, and what pip installs today.
ROWS = (
    ("3.10", "2.4.1", "2.16.2"),
    ("3.11", "2.7.1", "2.16.2"),
    ("3.12", "2.7.1", "2.19.1"),
    ("3.12", NEWEST, NEWEST),
    ("3.13", NEWEST, NEWEST),
    ("3.13", NEWEST, NONE),
    ("3.12", NONE, NEWEST),
)
_CANDIDATE = re.compile(r"\d(a|b|rc|\.dev)\d")
NEXT = "3.14"  # only checked for wheels
# Until something has been tried, the page has only these marks.
BEGIN, END = "<!-- tools/versions.py -->\n", "<!-- end of versions -->\n"
TITLE = """\

## Other versions of the frameworks

`make versions` installs PyTorch and TensorFlow with pip into an environment of their own, then the
wheel; it then builds Horovod, tests it on two ranks, and trains the quickstart. If a step fails,
the table shows the message that a user would see.

| Python | PyTorch | TensorFlow | Keras | how far it came | time | on disk |
|---|---|---|---|---|---|---|
"""
COLUMNS = 7
SHOWN_LINES = 40  # of the output of a step that failed


@dataclass
class Environment:
    """An environment, and how far its steps came."""

    python: str
    torch: str
    tensorflow: str
    keras: str = NONE
    ended: str = ""
    failed: bool = False
    seconds: float = 0.0
    gigabytes: float = 0.0
    env: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def row(self) -> str:
        cells = (
            self.python, self.torch, self.tensorflow, self.keras, self.ended,
            f"{self.seconds / 60:.1f} min", f"{self.gigabytes:.1f} GB",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def main() -> int:
    """Try what was requested; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", metavar="PYTHON,TORCH,TENSORFLOW")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file")
    asked = parser.parse_args()
    rows = [tuple(each.split(",")) for each in asked.only or ()] or list(ROWS)
    if wrong := [row for row in rows if len(row) != 3]:
        parser.error(f"--only takes three words with commas, such as 3.12,2.7.1,-: not {wrong[0]}")
    done = []
    with tempfile.TemporaryDirectory(prefix="rankroom-versions-") as folder:
        wheel = built_wheel(Path(folder))
        for version, torch, tensorflow in rows:
            command = find(version)
            if command is None:
                print(f"Python {version}: not on this machine", flush=True)
                continue
            done.append(tried(command, torch, tensorflow, wheel))
            print(done[-1].row, flush=True)
    if asked.write:
        write_section(asked.write, done, offered([v for v in (*PYTHONS, NEXT) if not find(v)]))
    failed = sum(each.failed for each in done)
    print(f"{len(done) - failed} passed, {failed} failed", flush=True)
    return 1 if failed or not done else 0


def write_section(page: Path, done: list[Environment], said: list[str]) -> None:
    """Write the table into a document, with its heading and the lines about other Pythons."""
    new = {versions(each.row): each.row for each in done}
    before = {versions(row): row for row in page.read_text().splitlines() if versions(row)}
    rows = "".join(f"{row}\n" for _, row in sorted((before | new).items(), key=_order))
    after = "".join(f"\n{each}\n" for each in said)
    interpreters.write(page, f"{TITLE}{rows}{after}\n", BEGIN, END)


def versions(row: str) -> tuple[str, ...]:
    """Return the versions of Python, PyTorch and TensorFlow in a row; empty if it is not one."""
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    return tuple(cells[:3]) if len(cells) == COLUMNS and re.match(r"3\.\d", cells[0]) else ()


def _order(row: tuple[tuple[str, ...], str]) -> list[list[int]]:
    return [[int(number) for number in re.findall(r"\d+", each)] for each in row[0]]


def built_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout; return its path."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


def tried(command: str, torch: str, tensorflow: str, wheel: Path) -> Environment:
    """Set up an environment step by step, until one fails."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankroom-env-") as name:
        folder = Path(name)
        subprocess.run([command, "-m", "venv", folder / "env"], check=True)
        words = "import platform; print(platform.python_version())"
        made = Environment(output(command, "-c", words).strip(), torch, tensorflow)
        made.env = {
            **{key: value for key, value in os.environ.items() if key not in _OURS},
            "PATH": f"{folder / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RANKROOM_HOME": str(folder / "home"),
            "RANKROOM_CACHE": str(folder / "cache"),
            "HOME": str(folder),
        }
        steps = {
            "pip": ["pip", "install", "--quiet", *_wanted(torch, tensorflow)],
            "the wheel": ["pip", "install", "--quiet", f"{wheel}[horovod,lab,quickstart]"],
            "building Horovod": ["rankroom", "horovod", "build"],
            "the check": ["rankroom", "horovod", "check"],
        }
        if NONE not in (torch, tensorflow):
            steps["training"] = ["rankroom", "demo"]
        for step, argv in steps.items():
            argv[0] = shutil.which(argv[0], path=made.env["PATH"]) or argv[0]
            code, text = run([*argv], folder, made.env)
            if step == "pip" and not code:
                _name_versions(made, folder / "env" / "bin" / "python")
            if code:
                print("\n".join(text.splitlines()[-SHOWN_LINES:]), flush=True)
                is_missing = step == "pip" and "No matching distribution" in text
                made.failed = not is_missing
                made.ended = f"{step}: {last_words(text)}"
                break
        else:
            made.ended = "trained" if "training" in steps else "proved on two ranks"
        made.seconds = time.monotonic() - begun
        made.gigabytes = size(folder)
        return made


def last_words(text: str) -> str:
    """Return the last error message, or else the last line, as a cell of a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)error|rankroom:|\w*Error:", line)]
    said = (errors or lines or ["no word"])[-1]
    return said.replace("|", "\\|")[:200]


def offered(versions: list[str]) -> list[str]:
    """Return, for Pythons that are not on this machine, which packages have wheels for them."""
    said = []
    for version in versions:
        have: list[str] = []
        lack: list[str] = []
        for package in ("torch", "tensorflow", "pyzmq", "psutil", "numpy"):
            argv = [
                sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps",
                "--only-binary", ":all:", "--python-version", version, "--target", "x",
                "--report", "-", package,
            ]  # fmt: skip
            done = subprocess.run(argv, capture_output=True, text=True)
            # If there is no release, pip chooses a candidate.
            found = json.loads(done.stdout)["install"] if done.returncode == 0 else []
            numbers = [each["metadata"]["version"] for each in found]
            is_there = numbers and not any(map(_CANDIDATE.search, numbers))
            (have if is_there else lack).append(package)
        said.append(
            f"Python {version} was not on this machine. There are wheels for it of "
            f"{', '.join(have) or 'nothing'}{'; none of ' + ', '.join(lack) if lack else ''}."
        )
    return said


def _wanted(torch: str, tensorflow: str) -> list[str]:
    # `===` excludes builds with a local version, so that pip takes the default build.
    names = (("torch", torch), ("tensorflow", tensorflow))
    return [
        name if version == NEWEST else f"{name}==={version}"
        for name, version in names
        if version != NONE
    ]


def _name_versions(made: Environment, python: Path) -> None:
    for name in ("torch", "tensorflow", "keras"):
        words = f"import importlib.metadata as m; print(m.version({name!r}))"
        setattr(made, name, output(python, "-c", words).strip() or NONE)


_OURS = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "VIRTUAL_ENV", "RANKROOM_TORCH", "PYTHONPATH"}

if __name__ == "__main__":
    sys.exit(main())
