"""Try `make demo` in a bare clone, with every installed Python and both builds of PyTorch.

`tools/interpreters.py [--only 3.13] [--torch cuda] [--write docs/pythons.md]`. Prints a line for
each when it has ended; with --write, the table of all trials replaces the one in the document. Each
takes minutes, and up to 9 GB while it runs. Exits with 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from machine import output
from packages import NO_CPU_TORCH

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")  # those that the Makefile accepts
LIMIT_S = 1800
# Tests of what depends on how frameworks and Horovod were built.
TESTS = (
    "tests/cluster/frameworks/test_both_frameworks.py",
    "tests/cluster/frameworks/test_horovod_ranks.py::test_horovod_check_verifies_the_installed_build",
)
BEGIN, END = "<!-- tools/interpreters.py -->\n", "<!-- end -->\n"
NO_OTHER = f"this machine has no other Python from {PYTHONS[0]} to {PYTHONS[-1]}: none was tried"
NOT_OFFERED = NO_CPU_TORCH.partition(":")[0]


@dataclass(frozen=True)
class Trial:
    """How `make demo` ended for one Python and one build of PyTorch."""

    python: str
    torch: str
    ended: str
    seconds: float = 0.0
    gigabytes: float = 0.0

    @property
    def row(self) -> str:
        size = f"{self.gigabytes:.1f} GB" if self.gigabytes else "–"
        minutes = f"{self.seconds / 60:.1f} min" if self.seconds else "–"
        return f"| {self.python} | {self.torch} | {self.ended} | {minutes} | {size} |"


def main() -> int:
    """Try what was requested; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", metavar="VERSION", help="3.13, say")
    parser.add_argument("--other", action="store_true", help="the newest but the one of .venv")
    parser.add_argument("--torch", action="append", choices=("cpu", "cuda"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file")
    asked = parser.parse_args()
    done = []
    begun = time.monotonic()
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = [each for each in reversed(PYTHONS) if each != this and find(each)][:1]
    for version in others if asked.other else asked.only or PYTHONS:
        python = find(version)
        if python is None:
            print(f"Python {version}: not on this machine", flush=True)
            continue
        for torch in asked.torch or ("cpu", "cuda"):
            done.append(tried(python, torch))
            print(done[-1].row, flush=True)
    if asked.write:
        write(asked.write, table(done))
    if asked.other and not others:
        print(NO_OTHER, flush=True)
        print(f"0 passed, 0 failed, 1 skipped in {time.monotonic() - begun:.1f}s", flush=True)
        return 0
    failed = [trial for trial in done if trial.ended.startswith("failed")]
    skipped = [trial for trial in done if trial.ended.startswith("no ")]
    passed = len(done) - len(failed) - len(skipped)
    counts = f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped"
    print(f"{counts} in {time.monotonic() - begun:.1f}s", flush=True)
    return 1 if failed or not passed else 0


def find(version: str) -> str | None:
    """Return the command of this Python, on PATH or in pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in candidates:
        command = shutil.which(candidate)
        words = "import sys; print('%d.%d' % sys.version_info[:2])"
        if command and output(command, "-c", words).strip() == version:
            return command
    return None


def tried(python: str, torch: str) -> Trial:
    """Clone the committed state, let `make demo` set it up and train, and run TESTS."""
    version = output(python, "-c", "import platform; print(platform.python_version())").strip()
    with tempfile.TemporaryDirectory(prefix="rankroom-clone-") as folder:
        clone = Path(folder, "rankroom")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        # Without the environment of this checkout.
        env = {name: value for name, value in os.environ.items() if name not in OURS}
        env["PATH"] = os.pathsep.join(
            part for part in env["PATH"].split(os.pathsep) if not part.startswith(str(ROOT))
        )
        begun = time.monotonic()
        command: list[str | Path] = ["make", "demo", f"PYTHON={python}", f"TORCH={torch}"]
        code, text = run(command, clone, env)
        seconds = time.monotonic() - begun
        if code and NOT_OFFERED in text:
            return Trial(version, torch, "no build for the CPU is offered")
        if not code and re.search(r"^trained, in ", text, re.M):
            env["PATH"] = f"{clone / '.venv' / 'bin'}{os.pathsep}{env['PATH']}"
            code, text = run(["python", "-m", "pytest", "--repeat", "2", *TESTS], clone, env)
            if not code:
                return Trial(version, torch_version(clone), "trained", seconds, size(clone))
        print("\n".join(text.splitlines()[-60:]), flush=True)
        return Trial(version, torch, f"failed (exit {code})", seconds)


def run(command: list[str | Path], cwd: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run a command with a time limit; return its exit status and all its output."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            code = process.wait()
        out.seek(0)
        return code, out.read().decode("utf-8", "replace")


def torch_version(clone: Path) -> str:
    words = "import torch; print(torch.__version__)"
    return output(clone / ".venv" / "bin" / "python", "-c", words).strip()


def size(folder: Path) -> float:
    """Return the gigabytes that a folder takes on disk."""
    used = output("du", "--summarize", "--block-size=1M", folder)
    return int(used.split()[0]) / 1000 if used else 0.0


def write(path: Path, table: str, begin: str = BEGIN, end: str = END) -> None:
    """Write a table between the marks in a document."""
    before, found, rest = path.read_text().partition(begin)
    _, closing, after = rest.partition(end)
    if not (found and closing):
        raise SystemExit(f"{path} lacks the lines that say where the table belongs")
    path.write_text(f"{before}{begin}{table}{end}{after}")


def table(trials: list[Trial]) -> str:
    return TITLE + "".join(f"{trial.row}\n" for trial in trials)


TITLE = """\
| Python | PyTorch | `make demo` | set-up and training | on disk |
|---|---|---|---|---|
"""
# Variables of the `make`, or of the environment, that has started this.
OURS = {
    "ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "RANKROOM_CACHE", "RANKROOM_TORCH", "VIRTUAL_ENV",
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
