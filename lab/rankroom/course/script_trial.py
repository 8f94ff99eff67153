"""Trials of the reader's scripts: each is started by `rankroom run`, in a folder of its own, and
one of its ranks may be killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankroom.course.slow_images import NOTES_VARIABLE
from rankroom.system import python_command

POLL_INTERVAL_S = 0.02
START_TIMEOUT_S = "120"  # for a machine that is busy with the reader's own ranks
MAX_TRAINING_STARTS = 4  # of the training, for a job that keeps restarting it
TERMINATE_TIMEOUT_S = 30.0  # for a launcher to end its ranks
OUTPUT_TAIL_CHARACTERS = 400  # characters of the end of a script's output


class ScriptTrial:
    """Runs `source` as train.py in `folder` on two ranks, and finds what they read and saved in the
    notes that they leave."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir(parents=True)
        (folder / "train.py").write_text(source, "utf-8")
        self.status = 0
        self.was_killed = False

    def run(self, kill: tuple[int, int] | None = None) -> None:
        """Run the script until it ends. With `kill`, (rank, images), kill that rank once it has
        read so many images.

        Each run has a record, like any other: `%runs` shows it.
        """
        self.was_killed = False
        with _started(
            python_command.command("rankroom", "run", "--ranks", "2", "train.py"), self.folder,
            {NOTES_VARIABLE: str(self._notes)},
        ) as process:  # fmt: skip
            while process.poll() is None:
                time.sleep(POLL_INTERVAL_S)
                if kill and not self.was_killed and self.read_by(kill[0]) >= kill[1]:
                    self.was_killed = True
                    for pid in self._processes(kill[0]):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
        self.status = process.returncode

    def delete_notes(self) -> None:
        """Delete the notes so far: later queries are then about the next run alone."""
        for path in self._notes.iterdir():
            path.unlink()

    def read_by(self, rank: int) -> int:
        """Return how many images a rank has read."""
        return sum(note["images"] for _, note in self._noted(rank) if "images" in note)

    def saved_by(self) -> set[int]:
        """Return the ranks that called torch.save."""
        return {rank for rank in (0, 1) for _, note in self._noted(rank) if "saves" in note}

    def output_tail(self) -> str:
        """Return the end of the script's output."""
        return (
            (self.folder / "output").read_text("utf-8", "replace").strip()[-OUTPUT_TAIL_CHARACTERS:]
        )

    def _processes(self, rank: int) -> set[int]:
        return {pid for pid, _ in self._noted(rank)}

    def _noted(self, rank: int) -> Iterator[tuple[int, Any]]:
        for path in self._notes.iterdir():
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # a line that is being written
                    note = json.loads(line)
                    if note["rank"] == rank:
                        yield int(path.stem), note


def run_job(folder: Path, text: str, failures: int) -> tuple[int, int, set[int]]:
    """Run a job script here, beside a train.py that is killed the first `failures` times. Return
    the exit status, how often training was started, and on which numbers of ranks."""
    (folder / "job.sh").write_text(text, "utf-8")
    (folder / "train.py").write_text(FAILING_TRAIN_SCRIPT.format(failures=failures))
    path, sizes = folder / "starts", list[int]()
    # This train.py imports no framework, so none is preloaded.
    with _started(["bash", "job.sh"], folder, {"RANKROOM_PRELOAD": "none"}) as process:
        while process.poll() is None and len(sizes) // max(sizes, default=1) < MAX_TRAINING_STARTS:
            time.sleep(POLL_INTERVAL_S)
            sizes = _sizes(path)
    sizes = _sizes(path)
    return process.returncode, len(sizes) // max(sizes, default=1), set(sizes)


def _sizes(path: Path) -> list[int]:
    """Return the numbers of ranks in the file: one line per rank and start."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@contextmanager
def _started(
    command: list[str], folder: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a folder, and end it with the block at the latest."""
    own = Path(sys.executable).parent  # where this environment's `rankroom` is
    # It runs beside this rank: not on the nodes of its job, nor with its rank and size.
    own_env = {
        name: value for name, value in os.environ.items() if name not in UNINHERITED_VARIABLES
    }
    env = {"RANKROOM_START_SECONDS": START_TIMEOUT_S} | own_env | env
    env["PATH"] = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # the job's shell, and what it has started
                try:
                    process.wait(TERMINATE_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


UNINHERITED_VARIABLES = {
    "SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
}  # fmt: skip
FAILING_TRAIN_SCRIPT = """
import os
import signal
import time

size = os.environ.get("WORLD_SIZE") or os.environ.get("HOROVOD_SIZE", "1")
rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK", "0")
with open("starts", "a") as file:
    file.write(f"{{size}}\\n")
while len(lines := open("starts").read().split()) % int(size):
    time.sleep(0.01)  # until all ranks of this start have written
if len(lines) // int(size) <= {failures} and rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""
