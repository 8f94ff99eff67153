"""Python as another user of this machine, which only root can start."""

import json
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable
from typing import Any

import pytest

UID = 54321  # of no account


def run(script: str, *arguments: str, uid: int = UID) -> str:
    """Run a script as another user, return what it prints; skips the test if that is impossible."""
    with start(script, *arguments, uid=uid) as running:
        said, complaints = running.communicate(timeout=120)
    assert not complaints, complaints
    return said.strip()


def start(script: str, *arguments: str, uid: int = UID) -> subprocess.Popen[str]:
    """Start a script as another user, with pipes; skips the test if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    # The system's, as this checkout's may be in a home that other users cannot enter.
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python for another user")
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    argv = [*become, "/usr/bin/env", "-i", python, "-c", script, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def call(act: Callable[[], Any], uid: int = UID) -> Any:
    """Call `act` as another user, in a fork of this process; return its result, passed as JSON.

    If it raises, the test fails with its traceback. Skips the test if this process is not root.
    """
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        answer: dict[str, Any] = {}
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer["value"] = act()
        except BaseException:
            answer["error"] = traceback.format_exc()
        finally:
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["value"]
