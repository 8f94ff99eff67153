"""JupyterHub, batchspawner and npm's configurable-http-proxy, installed into folders of .cache.

They are not part of this project's environment, but Python finds the packages that they share with
it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from checkout import CACHE, ROOT, TESTS

LOCK = TESTS / "slurm" / "testbed" / "hub_requirements.lock"
PROXY = "configurable-http-proxy@5.3.0"


class HubPackages:
    """Where the packages are; installs them on first use, and when the lock file has changed."""

    def __init__(self) -> None:
        self.folder = CACHE / "hub"
        self.packages = self.folder / "packages"
        self.node = self.folder / "node"
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other test workers may install them, too
            self._install()

    def _install(self) -> None:
        about = f"{sys.version} {sys.prefix} {PROXY}".encode() + LOCK.read_bytes()
        wanted, stamp = hashlib.sha256(about).hexdigest(), self.folder / "installed"
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        for each in (self.packages, self.node):
            shutil.rmtree(each, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        _run([*pip, "--target", str(self.packages), "--requirement", str(LOCK)])
        quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
        _run(["npm", "install", *quiet, "--prefix", str(self.node), PROXY])
        stamp.write_text(wanted)

    @property
    def path(self) -> str:
        """PATH with the packages' commands before the environment's own."""
        mine = [self.packages / "bin", self.node / "node_modules" / ".bin"]
        rest = [Path(sys.executable).parent, "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return ":".join(map(str, [*mine, *rest]))

    @property
    def python_path(self) -> str:
        """PYTHONPATH with the packages and Rankroom itself."""
        return f"{self.packages}:{ROOT / 'lab'}"


def _run(words: list[str]) -> None:
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-3000:]}"
