"""A seat's JupyterLab on this machine, for a workshop on one large node: it runs as the learner's
account, on loopback, behind a token.

It is detached from the terminal: closing the laptop does not end it, and joining again finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psutil

from rankroom import config
from rankroom.errors import LabError
from rankroom.jupyter_job import endpoint
from rankroom.jupyter_job.endpoint import Endpoint
from rankroom.record.cluster_file import tail
from rankroom.system import gpus, python_command
from rankroom.system.files import write_atomically
from rankroom.system.polling import poll_until
from rankroom.workshop.owned_files import account
from rankroom.workshop.sharing import WORKSHOP_VARIABLE
from rankroom.workshop.workshop_plan import Plan

START_TIMEOUT_S = 120.0  # forty servers that start at once share the disk
STOP_TIMEOUT_S = 20.0
# The server makes its token itself, and writes it to a file of mode 0600: no command line and no
# environment shows it. Kernels use sockets in a folder, not ports.
_CONFIG = """\
import secrets

c = get_config()
c.IdentityProvider.token = secrets.token_urlsafe(32)
c.PasswordIdentityProvider.hashed_password = ""
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = {port}
c.ServerApp.port_retries = 1000
c.ServerApp.open_browser = False
c.ServerApp.allow_remote_access = False
c.ServerApp.root_dir = {root!r}
c.KernelManager.transport = "ipc"
"""


def folder() -> Path:
    """Return the folder of the server's files, which no other account may enter."""
    return config.home() / "workshop-server"


def running(workshop: str) -> Endpoint | None:
    """Return where the server listens; None if it does not run on this machine for this workshop,
    or not yet."""
    pid, runtime, of = _started()
    if pid and of == workshop and _is_ours(pid):
        with contextlib.suppress(OSError):
            return endpoint.read((runtime / f"jpserver-{pid}.json").read_text("utf-8"))
    return None


def workshop_here() -> str:
    """Return the folder of the workshop whose server was started last on this machine, though it
    may have ended; empty if there is none."""
    return _started()[2]


def start(plan: Plan, workshop: str) -> Endpoint:
    """Start the server, or find the one that runs or is starting; that of another workshop is ended
    first. Return where it listens.

    Raises LabError with the end of its log.
    """
    process: subprocess.Popen[bytes] | None = None
    pid, runtime, of = _started()
    if not pid or of != workshop or not _is_ours(pid):
        stop()
        process, runtime = _begin(plan, workshop)
        pid = process.pid

    def has_ended() -> bool:
        return not _is_ours(pid) if process is None else process.poll() is not None

    poll_until(lambda: running(workshop) is not None or has_ended(), START_TIMEOUT_S)
    if (found := running(workshop)) is None:
        if process is not None:
            process.kill()
            process.wait()
        _end(pid, runtime)
        raise LabError(f"JupyterLab did not start; {_log()} ends with:\n{tail(_log())}")
    return found


def _begin(plan: Plan, workshop: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the server's process. Return it, and its folder for sockets."""
    config.make_private(folder())
    home = config.user_home()
    # It holds the kernels' sockets, whose paths must be short.
    runtime = tempfile.mkdtemp(prefix="lab-", dir="/tmp")
    settings, log = folder() / "config.py", _log()
    # One of 12,000 ports by uid, so that forty servers rarely request the same one.
    write_atomically(settings, _CONFIG.format(port=20000 + os.getuid() % 12000, root=str(home)))
    env = {
        **python_command.environment(os.environ),
        WORKSHOP_VARIABLE: workshop, "JUPYTER_RUNTIME_DIR": runtime,
        gpus.VISIBLE: gpus_of_seat(plan, account(os.getuid()), os.getuid()),
    }  # fmt: skip
    if plan.preload:
        env["RANKROOM_PRELOAD"] = plan.preload
    with log.open("wb") as out:
        log.chmod(0o600)
        process = subprocess.Popen(
            [*python_command.command("jupyterlab", f"--config={settings}"), *_root_may()],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=home,
            env=env,
        )  # fmt: skip
    about = {
        "host": socket.gethostname(), "pid": process.pid, "runtime": runtime, "workshop": workshop,
    }  # fmt: skip
    write_atomically(_server_file(), json.dumps(about))
    return process, Path(runtime)


def gpus_of_seat(plan: Plan, user: str, uid: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for a learner's server: as many of the node's GPUs as the plan
    gives a seat, the same at each start. They are assigned round-robin in the order of the plan's
    learners; an account that is not listed is placed by its uid."""
    count = gpus.visible_gpus()
    listed = os.environ.get(gpus.VISIBLE)  # what this account may use of the node
    names = list(map(str, range(count))) if listed is None else listed.split(",")[:count]
    place = plan.learners.index(user) if user in plan.learners else uid
    most = min(plan.gpus, count)
    return ",".join(names[(place * most + number) % count].strip() for number in range(most))


def stop() -> bool:
    """End the server if it runs on this machine, and remove its files. Return whether it ran."""
    pid, runtime, _ = _started()
    return bool(pid) and _end(pid, runtime)


def _end(pid: int, runtime: Path) -> bool:
    """End the server that has this pid, and remove its files, but not those of a newer one. Return
    whether it ran."""
    if was_there := _is_ours(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            if not poll_until(lambda: not _is_ours(pid), STOP_TIMEOUT_S):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        shutil.rmtree(runtime)
    if _started()[0] == pid:
        _server_file().unlink(missing_ok=True)
    return was_there


def _server_file() -> Path:
    return folder() / "server.json"


def _log() -> Path:
    return folder() / "server.log"


def _started() -> tuple[int, Path, str]:
    """Return the pid of the server started last on this machine, its folder for sockets, and its
    workshop; the pid is 0 if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        about = json.loads(_server_file().read_text("utf-8"))
        if about["host"] == socket.gethostname():
            return int(about["pid"]), Path(about["runtime"]), str(about.get("workshop", ""))
    return 0, Path(), ""


def _is_ours(pid: int) -> bool:
    """Return whether a process is this account's server, and not a later one with the same pid."""
    try:
        process = psutil.Process(pid)
        words = python_command.arguments(process.cmdline())
        alive = process.status() != psutil.STATUS_ZOMBIE
        own = process.uids().real == os.getuid()  # pid and arguments do not prove it is ours
    except psutil.Error:
        return False
    is_lab = words[:1] == ["jupyterlab"] and f"--config={folder() / 'config.py'}" in words
    return alive and own and is_lab


def _root_may() -> list[str]:
    return ["--allow-root"] if os.getuid() == 0 else []
