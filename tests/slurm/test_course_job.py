"""The job script that the course's capstone asks for, submitted to a real Slurm."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from checkout import NOTEBOOKS
from machines import Machines
from remote import until_nothing_runs

TRAIN = """
import os
import signal
import socket
from pathlib import Path

died = Path("died")
if os.environ["RANK"] == "0" and not died.exists():
    died.touch()
    os.kill(os.getpid(), signal.SIGKILL)
print("trained on", socket.gethostname(), flush=True)
"""


def solution() -> Any:
    """The lesson's own `job`."""
    cells = json.loads((NOTEBOOKS / "20_capstone.ipynb").read_text())["cells"]
    [fold] = ["".join(cell["source"]) for cell in cells if cell["id"] == "submitted-help"]
    found: dict[str, Any] = {}
    exec(re.search(r"<summary>Solution</summary>\s+```python\n(.*?)```", fold, re.DOTALL)[1], found)
    return found["job"]


def test_a_training_that_dies_once_is_started_again_in_the_job(machines: Machines):
    lines = solution()(2).splitlines()
    lines[1:1] = ["#SBATCH --nodes=2", "#SBATCH --output=job.log"]
    # The site's module, which brings `rankroom` onto PATH.
    first = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    lines.insert(first, f"export PATH={Path(sys.executable).parent}:$PATH")
    machines.put("alice", "train.py", TRAIN)
    path = machines.put("alice", "job.sh", "\n".join([*lines, "echo status $?", ""]))
    machines.run("login", ["sbatch", path], "alice")
    log = machines.home("alice") / "job.log"
    deadline = time.monotonic() + 180
    while not log.exists() or "status " not in log.read_text():
        assert time.monotonic() < deadline, log.exists() and log.read_text()
        time.sleep(0.2)
    said = log.read_text()
    assert "SIGKILL" in said and "status 0" in said, said
    assert "0 │ trained on c" in said and "1 │ trained on c" in said, said
    until_nothing_runs(machines)
