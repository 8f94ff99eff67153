"""What the set-up requires of the machine, and functions that run its commands."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

OLDEST_NODE = 20  # required by Playwright; npm only warns of older ones
NODE = f"Node.js {OLDEST_NODE} or newer"
PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}"  # may differ from python3's
# What steps require of the machine, and the Debian packages that provide it.
DEBIAN = {
    "Python's venv": f"{PACKAGE}-venv",
    "Python's headers": f"{PACKAGE}-dev",
    "g++": "g++",
    NODE: "nodejs",
    "npm": "npm",
    "Chromium": "chromium",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "Slurm's plugins": "slurm-wlm-basic-plugins",
    "munged": "munge",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "ch-run": "charliecloud",
}
# Other sources of what Debian may have only in an older version, or under another name.
HINTS = {
    NODE: "Node.js: where your distribution has an older one, see https://nodejs.org/download",
    "Chromium": "Chromium: Google Chrome will do; name what you have with RANKROOM_CHROMIUM",
}
# What the tests' Slurm cluster requires; only root can start it, else its tests are skipped.
CLUSTER = tuple(DEBIAN)[tuple(DEBIAN).index("slurmctld") :]
POLICY = Path("/usr/sbin/policy-rc.d")
RUNNING: set[subprocess.Popen[str]] = set()
ENDING = threading.Event()  # when set, commands that steps begin are ended at once


def can_install() -> bool:
    """Return whether missing packages can be installed here."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def provide(needs: Iterable[str]) -> None:
    """Check that the machine has what is needed. As root on Debian, install what is missing."""
    missing = [need for need in dict.fromkeys(needs) if not has(need)]
    if not missing:
        return
    print(f"set-up: this machine lacks {', '.join(missing)}", flush=True)
    if can_install() and (packages := from_debian(missing)):
        with no_services():
            run(["apt-get", "update", "-qq"])
            run(["apt-get", "install", "-y", "--no-install-recommends", *packages])
        missing = [need for need in missing if not has(need)]
    if missing:
        said = f"Rankroom needs {', '.join(missing)}: install what is missing, then run this again"
        if packages := from_debian(missing):
            said += f" (Debian or Ubuntu: `sudo apt install {' '.join(packages)}`)"
        if NODE in missing and node_version():
            said += f"; node is {node_version()} here"
        raise SystemExit("\n".join([said, *(HINTS[need] for need in missing if need in HINTS)]))


def from_debian(missing: Iterable[str]) -> list[str]:
    """Return the packages that may help: not Node.js's if it is installed but too old, nor those
    that the distribution does not have."""
    found = [DEBIAN[need] for need in missing if need != NODE or not node_version()]
    # Ubuntu has it as a snap only, and apt installs nothing if one package is unknown.
    return [each for each in found if each != "chromium" or not is_ubuntu()]


def is_ubuntu() -> bool:
    """Return whether this machine runs Ubuntu."""
    with contextlib.suppress(OSError):
        return "ID=ubuntu" in Path("/etc/os-release").read_text("utf-8").splitlines()
    return False


@contextlib.contextmanager
def no_services() -> Iterator[None]:
    """Keep packages that are installed from starting services: tests start what they need."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def has(need: str) -> bool:
    """Return whether the machine has what is needed."""
    if need == "Python's venv":
        return importlib.util.find_spec("ensurepip") is not None
    if need == "Python's headers":
        return Path(sysconfig.get_path("include"), "Python.h").is_file()
    if need == NODE:
        number = node_version().lstrip("v").partition(".")[0]
        return number.isdigit() and int(number) >= OLDEST_NODE
    if need == "Chromium":
        return Path(os.environ.get("RANKROOM_CHROMIUM", "/usr/bin/chromium")).exists()
    if need == "Slurm's plugins":
        return any(Path("/usr/lib").glob("*/slurm*/select_cons_tres.so"))
    # Daemons are not on every user's path.
    return shutil.which(need, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def node_version() -> str:
    """Return Node.js's version, such as `v20.20.2`; empty if there is none, or it does not run."""
    return output("node", "--version").strip() if shutil.which("node") else ""


def run(
    command: list[str | Path], cwd: Path = Path(), quiet: bool = True, **environment: str
) -> None:
    """Run a command; if it fails, print the last lines of its output and exit."""
    status, said = attempt(command, cwd, quiet, environment)
    if status:
        for line in said.rstrip().splitlines()[-40:]:
            print(f"  {line}")
        raise SystemExit(f"set-up: `{shown(command)}` failed (exit {status}), see above")


def attempt(
    command: list[str | Path],
    cwd: Path = Path(),
    quiet: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Run a command that may fail; return its exit status and, if it was `quiet`, its output.

    Raises SystemExit if `end_all` has ended it.
    """
    started = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(started)
    if ENDING.is_set():
        end_all()
    try:
        said, _ = started.communicate()
    except BaseException:  # an interrupt, or the end of this process
        end_all()
        raise
    finally:
        RUNNING.discard(started)
    # Some commands handle the signal, and exit with the second status.
    if started.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM):
        raise SystemExit(f"set-up: `{shown(command)}` was ended")
    return started.returncode, said or ""


def shown(command: list[str | Path]) -> str:
    return " ".join(str(word) for word in command)


def end_all() -> None:
    """End the running commands, with all that they have started."""
    for started in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)


def has_gpu() -> bool:
    """Return whether NVIDIA's driver has a GPU here."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return (gpus.is_dir() and any(gpus.iterdir())) or bool(
        shutil.which("nvidia-smi") and "GPU" in output("nvidia-smi", "-L")
    )


def succeeds(*words: str | Path) -> bool:
    """Return whether a command exits with 0."""
    return subprocess.run([str(word) for word in words], capture_output=True).returncode == 0


def output(*words: str | Path) -> str:
    """Return what a command prints; empty if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""
