"""Ranks on this machine: start the process that keeps them, and find out how many fit."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rankroom.clusterfile import ClusterInfo, ClusterPaths, tail
from rankroom.errors import StartError, UsageError

START_S = 30.0
Progress = Callable[[str], None]


def gpu_count() -> int:
    """GPUs that ranks of this machine may use; 0 without a driver. CUDA_VISIBLE_DEVICES counts."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except Exception:
        # No driver, no library, no permission: whatever it is, there is no GPU to give.
        return 0
    if visible is None:
        return count
    return min(count, len([each for each in visible.split(",") if each.strip() not in ("", "-1")]))


def launch(
    ranks: int | None, name: str | None, cwd: str | None
) -> tuple[ClusterPaths, subprocess.Popen[bytes]]:
    """Start the keeper of a new cluster and return at once; `wait_ready` waits for its ranks.

    Raises UsageError for a number of ranks that makes no sense, StartError if nothing starts.
    """
    devices = gpu_count()
    size = ranks if ranks is not None else (devices or 2)
    if size < 1:
        raise UsageError(f"--ranks {size}: a cluster has at least 1 rank")
    # More CPU ranks than that on one machine is a typing error, not a wish.
    if size > max(64, 4 * (os.cpu_count() or 1)):
        raise UsageError(f"--ranks {size}: this machine has {os.cpu_count()} cores")
    paths = ClusterPaths(name or f"local-{secrets.token_hex(2)}")
    if alive(paths.read()):
        raise UsageError(
            f"a cluster named {paths.name} is running: `%cluster attach {paths.name}`, "
            "or choose another --name"
        )
    paths.remove()
    try:
        paths.make(size)
        info = ClusterInfo(
            paths.name, size, created=time.time(), python=sys.executable, cwd=cwd or str(Path.cwd())
        )
        paths.write(info)
        with paths.keeper_log.open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "rankroom.rank.keeper", str(paths.folder), str(devices)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, cwd="/",
            )  # fmt: skip
    except OSError as error:
        raise StartError(f"cannot start a cluster in {paths.folder}: {error}") from None
    return paths, keeper


def alive(info: ClusterInfo | None) -> bool:
    """True if the process that keeps this cluster is running on this machine."""
    if info is None or not info.keeper or info.state in ("failed", "stopped"):
        return False
    try:
        process = psutil.Process(info.keeper)
        return bool(
            process.is_running()
            and process.status() != psutil.STATUS_ZOMBIE
            and "rankroom.rank.keeper" in process.cmdline()
        )
    except psutil.Error:
        return False


def failure(paths: ClusterPaths, keeper: subprocess.Popen[bytes]) -> StartError | None:
    """Why the cluster in `paths` will not become ready, if that is already clear."""
    info = paths.read()
    if info is None:
        return StartError(_with_log(f"cluster {paths.name} is gone", paths.keeper_log))
    if info.exits:
        rank = min(int(each) for each in info.exits)
        how = info.exits[str(rank)]
        return StartError(_with_log(f"rank {rank} {how} while starting", paths.rank_log(rank)))
    if info.state == "failed":
        return StartError(_with_log(info.message, paths.controller_log))
    if keeper.poll() is not None:
        return StartError(_with_log("the cluster's keeper has ended", paths.keeper_log))
    return None


def timed_out(paths: ClusterPaths, missing: list[int]) -> StartError:
    """The error for a start that took too long: which ranks are missing, and what they said."""
    rank = missing[0] if missing else 0
    log = paths.rank_log(rank)
    if not tail(log):
        log = paths.controller_log if tail(paths.controller_log) else paths.keeper_log
    words = f"rank {', '.join(map(str, missing))} not ready after {START_S:.0f} s"
    return StartError(_with_log(words, log))


def _with_log(words: str, log: Path) -> str:
    text = tail(log)
    return f"{words}; {log} ends with:\n{text}" if text else f"{words}; {log} is empty"


def wait_end(paths: ClusterPaths, seconds: float = 8.0) -> None:
    """Wait for a keeper that was asked to stop; then end whatever is left of its cluster."""
    deadline = time.monotonic() + seconds
    while alive(paths.read()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in own_processes(paths):
        with contextlib.suppress(psutil.Error):
            process.kill()
    paths.remove()


def own_processes(paths: ClusterPaths) -> list[psutil.Process]:
    """The processes that are provably this cluster's: our modules, started with its folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        ours = words[1:2] == ["-m"] and words[2] in _MODULES
        if ours and any(str(paths.folder) in word for word in words[3:]):
            found.append(process)
    return found


_MODULES = ("ipyparallel.controller", "rankroom.rank.engine", "rankroom.rank.keeper")
