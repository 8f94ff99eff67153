"""Runs the cells of a batch job, within the job: `python -m rankroom.batch.runner FOLDER`.

As in JupyterLab, all cells run in one kernel, ranks are started from it, and runs are recorded. The
executed notebook is written after each cell; the job ends at the first cell that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError
from traitlets.config import Config

from rankroom import config
from rankroom.batch.batch_folder import FOLDER_VARIABLE, BatchFolder, Progress
from rankroom.batch.cell_text import said, short
from rankroom.batch.notebook_script import Cell, cells_of
from rankroom.batch.own_kernel import OwnKernel
from rankroom.cluster import lookup, repair
from rankroom.errors import RankroomError, UsageError
from rankroom.record.cluster_file import ClusterPaths
from rankroom.record.model import title_of
from rankroom.record.store import Store
from rankroom.scheduler.job_end import JobEnd
from rankroom.system import process_tree
from rankroom.system.files import write_atomically
from rankroom.system.log_line import escape_what_cannot_be_shown, say
from rankroom.system.polling import poll_until

KERNEL_START_TIMEOUT_S = 180  # for the kernel to start
OUTPUT_TIMEOUT_S = 3600  # for reading the rest of a cell's output, once the cell has ended
DISK_SPACE_TIMEOUT_S = 30.0  # at the end, for a full disk to have space for the notebook again
INTERRUPT_DELAY_S = 1.0  # when the job is ended, for a cell on ranks to end with them
LEFTOVER_END_TIMEOUT_S = 1.0  # for processes to end that a dead kernel has left running


class Runner:
    """One batch job: its kernel, its notebook, and its progress."""

    def __init__(self, folder: Path, cwd: str, copy: str) -> None:
        self.folder = BatchFolder(str(folder))
        self.notebook: Any = nbformat.read(self.folder.notebook, as_version=4)
        for cell in self.notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        self.copy = copy
        self.cells = cells_of(Path(self.folder.script).read_text("utf-8"))
        self.shown = self.placed()
        self.cwd = Path(os.path.expanduser(cwd)) if cwd else folder  # noqa: PTH111 - no error
        if not self.cwd.is_dir():
            raise UsageError(NO_FOLDER.format(cwd=self.cwd, host=socket.gethostname()))
        self.progress = Progress(
            "running", cells=len(self.cells), host=socket.gethostname(), copy=copy,
            home=str(config.home()),
        )  # fmt: skip
        self.begun = time.time_ns() // 1000
        self.ending = ""  # why the job is being ended, if it is
        self.unwritten = ""  # why the last attempt to write the notebook failed
        job = os.environ.get("SLURM_JOB_ID", "")
        self.job_end = JobEnd(job, 0.0) if job else None
        # Two processes of one user need no port; the path of a Unix socket has to be short.
        self.sockets = tempfile.mkdtemp(prefix="rankroom-batch-", dir="/tmp")
        private = {"transport": "ipc", "ip": f"{self.sockets}/kernel"}
        self.client = NotebookClient(
            self.notebook, timeout=None, startup_timeout=KERNEL_START_TIMEOUT_S,
            kernel_name="python3", kernel_manager_class=OwnKernel, iopub_timeout=OUTPUT_TIMEOUT_S,
            resources={"metadata": {"path": str(self.cwd)}},
            config=Config({"KernelManager": private}),
        )  # fmt: skip

    def run(self) -> int:
        """Run the cells; return the exit status of the job."""
        os.environ[FOLDER_VARIABLE] = str(self.folder.path)
        os.environ[process_tree.JOB_MARK] = process_tree.job(os.environ)
        if self.job_end:
            self.job_end.start_polling()
        # When a job ends, every process of it gets a signal. The kernel ignores that: it stays
        # until its ranks have ended and their output is in the records.
        signal.signal(signal.SIGTERM, self.note_end)
        signal.signal(signal.SIGUSR1, self.warn)
        try:
            with self.client.setup_kernel():
                self.client.kc.execute(IGNORE_SIGTERM_CODE, silent=True, store_history=False)
                signal.signal(signal.SIGTERM, self.end)
                self.progress.state = self.all_cells()
                self.save()
        finally:
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.clear()
            if not (is_kept := poll_until(self.save, DISK_SPACE_TIMEOUT_S, 1.0)):
                said = NOT_KEPT.format(why=self.unwritten)
                self.progress.why = f"{self.progress.words}, and {said}"
                self.progress.state, self.progress.copy = "failed", ""
                self.write_progress()
        say(self.progress.words)
        if is_kept:
            say(f"the executed notebook: {self.progress.copy or self.folder.executed}")
        return int(self.progress.state != "done")

    def all_cells(self) -> Literal["done", "failed"]:
        """Run the cells in order, until one fails; return the job's final state."""
        for count, (cell, shown) in enumerate(zip(self.cells, self.shown, strict=True), 1):
            magic, _, body = cell.source.partition("\n")
            title = (magic.startswith("%%") and title_of(body)) or title_of(cell.source)
            self.progress.cell, self.progress.title = count, title
            if self.ending:  # before there was a kernel
                self.progress.why = self.why_ended()
                return "failed"
            say(f"cell {count} of {len(self.cells)}: {title}")
            self.save()
            why = self.one_cell(cell, shown)
            if self.ending:
                self.progress.why = self.why_ended()
                return "failed"
            if why:
                self.progress.why = f"cell {count} of {len(self.cells)} failed, {title}: {why}"
                return "failed"
        return "done"

    def placed(self) -> list[Any]:
        """Return the notebook's cell for each cell of the script; added cells are inserted into the
        notebook before the cell that follows them.

        Raises UsageError if the script has a cell that the notebook does not have.
        """
        cells = self.notebook.cells
        numbered = {n: each for n, each in enumerate(cells, 1) if each.cell_type == "code"}
        placed = []
        for count, cell in enumerate(self.cells):
            if not cell.number:
                shown = nbformat.v4.new_code_cell(cell.source)
                if self.notebook.nbformat_minor < 5:
                    shown.pop("id", None)  # these versions of the format have no ids
                following = next((each.number for each in self.cells[count:] if each.number), 0)
                after = numbered.get(following)
                cells.insert(len(cells) if after is None else self.index(after), shown)
            elif (shown := numbered.get(cell.number)) is None:
                raise UsageError(NO_CELL.format(script=self.folder.script, number=cell.number))
            placed.append(shown)
        return placed

    def index(self, cell: Any) -> int:
        """Return the index of a cell in the notebook, by identity: others may be equal to it."""
        return next(at for at, each in enumerate(self.notebook.cells) if each is cell)

    def one_cell(self, cell: Cell, shown: Any) -> str:
        """Run a cell, which is `shown` in the notebook; return why it failed, if it did."""
        shown.source = cell.source
        try:
            self.client.execute_cell(shown, self.index(shown))
        except CellControlSignal as error:
            return short(error)
        except DeadKernelError:
            return "the kernel died"
        finally:
            with contextlib.suppress(OSError):  # the log's disk is full
                print(said(shown.outputs), end="", flush=True)
        return ""

    def save(self) -> bool:
        """Write the notebook and the progress; return whether the notebook was written. A full disk
        does not end the job: writing is retried after the next cell."""
        self.progress.runs = self.runs()
        text = nbformat.writes(self.notebook) + "\n"
        is_saved = self.write(str(self.folder.executed), text)
        if self.copy:
            is_copied = self.write(self.copy, text)
            # If that failed, the notebook is in the job's folder.
            self.progress.copy = self.copy if is_copied or not is_saved else ""
            is_saved |= is_copied
        self.write_progress()
        return is_saved

    def write(self, path: str, text: str) -> bool:
        try:
            write_atomically(Path(path), text, mode=0o644)
        except OSError as error:
            self.unwritten = error.strerror or str(error)
            say(f"{path} cannot be written ({self.unwritten})")
            return False
        return True

    def write_progress(self) -> None:
        with contextlib.suppress(OSError):  # the job's log also has the outcome
            self.progress.write(Path(self.folder.state))

    def runs(self) -> list[str]:
        """Return the ids of the runs that the kernel has submitted, oldest first."""
        kernel = getattr(getattr(self.client.km, "provisioner", None), "pid", None)
        found, store = list(self.progress.runs), Store()
        for run_id in store.ids():
            with contextlib.suppress(RankroomError):
                run = store.load(run_id)
                if run.start < self.begun:
                    break
                mine = run.client and (run.client.host, run.client.pid) == (
                    self.progress.host, kernel
                )  # fmt: skip
                if mine and run_id not in found:
                    found.append(run_id)
        return sorted(found)

    # -- end of the job

    def warn(self, number: int, frame: FrameType | None) -> None:
        say("this job is about to reach its time limit")

    def note_end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM while the kernel starts: no cell is to run."""
        self.ending = ENDED

    def end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: the job ends within seconds, so first save what there is by now."""
        if self.progress.state != "running":
            return  # all cells have run, or this has been handled
        self.ending = ENDED
        self.progress.state, self.progress.why = "failed", self.why_ended()
        self.save()
        threading.Thread(target=self.follow_end, daemon=True).start()

    def why_ended(self) -> str:
        about = self.progress
        return f"{self.ending}: in cell {about.cell} of {about.cells}, {about.title}"

    def follow_end(self) -> None:
        """Find out why the job is ended; interrupt the cell if it does not end with its ranks."""
        if self.job_end:
            self.ending = self.job_end.why() or self.ending
        say(self.ending)
        self.progress.why = self.why_ended()
        self.write_progress()
        time.sleep(INTERRUPT_DELAY_S)
        with contextlib.suppress(AttributeError, OSError):
            os.kill(self.client.km.provisioner.pid, signal.SIGINT)

    def clear(self) -> None:
        """End clusters and processes that the cells have left running; complete the records."""
        marked = {each.pid for each in self.left()}
        for info in lookup.running_clusters():
            if info.supervisor in marked and info.host == self.progress.host:
                with contextlib.suppress(RankroomError, OSError):
                    lookup.end(ClusterPaths(info.name))
        process_tree.end(self.left(), LEFTOVER_END_TIMEOUT_S)
        with contextlib.suppress(RankroomError, OSError):
            repair.complete_all(Store())

    def left(self) -> set[Any]:
        """Return the other processes of this job."""
        return {
            each
            for each, value in process_tree.belonging(FOLDER_VARIABLE)
            if value == str(self.folder.path)
        }


def main(argv: list[str] | None = None) -> int:
    """Run the batch job in a folder."""
    options = argparse.ArgumentParser("rankroom.batch.runner")
    options.add_argument("folder", type=Path)
    options.add_argument("--cwd", default="")
    options.add_argument("--copy", default="")
    chosen = options.parse_args(argv)
    escape_what_cannot_be_shown()
    try:
        runner = Runner(chosen.folder.absolute(), chosen.cwd, chosen.copy)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    return runner.run()


# One expression, which leaves no name in the user's namespace.
IGNORE_SIGTERM_CODE = (
    "__import__('rankroom.batch.kernel_signals').batch.kernel_signals.outlive_sigterm()"
)
ENDED = "the job was ended"
NOT_KEPT = "the executed notebook could not be written ({why})"
NO_CELL = "{script} has a cell [{number}], but the notebook has no code cell with that number"
NO_FOLDER = "the working folder {cwd} does not exist on {host}: choose another with --cwd"


if __name__ == "__main__":
    raise SystemExit(main())
