"""A batch job as seen from where it was submitted: its files there, its progress, its results."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

from rankroom import config
from rankroom.batch.batch_folder import BatchFailed, BatchFolder, Progress
from rankroom.batch.notebook_script import Notebook
from rankroom.errors import SchedulerError
from rankroom.record.store import Store
from rankroom.scheduler import own_folder
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.scheduler_client import Scheduler, retry_until_known
from rankroom.ssh.host import Host
from rankroom.system import commands

COMMAND_TIMEOUT_S = 30.0
UPLOAD_TIMEOUT_S = 300.0
POLL_INTERVAL_S = 1.0  # poll interval; each poll runs a command on the login node
# For the files of a job that has ended to become visible on a shared file system.
RESULT_VISIBLE_TIMEOUT_S = 10.0
LINE = 65_536  # characters in a line of the base64 text that is fetched


class BatchJob:
    """The files of a batch job in `folder` at `place`."""

    def __init__(self, place: Host, folder: BatchFolder) -> None:
        self.place = place
        self.folder = folder

    async def put(self, files: dict[str, str]) -> None:
        """Create the folder, private to the user, with these files. Raises BatchFailed."""
        for path, text in files.items():
            code = f'{own_folder.MAKE_SCRIPT} && cat >"$2"'
            done = await self._run_at_site(code, PurePosixPath(path).name, input=text)
            if not done.ok:
                said = (
                    f"no answer within {UPLOAD_TIMEOUT_S:.0f} s" if done.timed_out else done.tail()
                )
                raise BatchFailed(NOT_PUT.format(path=path, said=said))

    async def progress(self) -> Progress:
        """Return the progress that the job last wrote. Raises SchedulerError while that cannot be
        read, which says nothing about the job."""
        done = await self._inside('! present "$2" || cat "$2"', self.folder.state.name)
        if not done.ok:
            raise SchedulerError(done.failure(f"cat {self.folder.state}", self.place.name))
        return Progress.from_json(done.output)

    async def log(self, job: str, lines: int = 20) -> str:
        """Return the end of the job's log."""
        code = f'tail -n {lines} ./*"$2"*.log "$2".*OU 2>/dev/null; true'
        return (await self._inside(code, job)).output.strip()

    async def bring(self, progress: Progress, copy: Path, store: Store) -> int:
        """Copy the executed notebook to `copy`, and new records to `store`; return how many
        records.

        Raises BatchFailed if what arrives is incomplete; what can be copied is.
        """
        with tempfile.TemporaryDirectory(prefix="rankroom-batch-") as temporary:
            root = Path(temporary).resolve()
            lacking: BatchFailed | None = None
            try:
                await self._unpack(str(self.folder.path), self.folder.executed.name, root)
                shutil.copyfile(root / self.folder.executed.name, copy)
            except BatchFailed as error:  # a full disk there kept it from being written
                lacking = error
            except OSError as error:
                lacking = BatchFailed(NOT_BROUGHT.format(what=copy.name, why=error))
            new = [each for each in progress.runs if not store.paths(each).folder.exists()]
            config.make_private(store.runs)
            failed = []
            for run in new:
                try:
                    await self._unpack(f"{progress.home}/runs", run, root)
                except BatchFailed as error:  # it may have been removed there
                    failed.append(str(error))
                    continue
                # A record appears whole.
                beside = store.runs / f".{run}.brought"
                shutil.copytree(root / run, beside, dirs_exist_ok=True)
                beside.rename(store.paths(run).folder)
        if lacking is not None:
            raise lacking
        if failed:
            raise BatchFailed(
                RECORDS_MISSING.format(missing=len(failed), count=len(new), why=failed[0])
            )
        return len(new)

    async def _unpack(self, folder: str, name: str, root: Path) -> None:
        with tempfile.TemporaryFile() as file:
            await self._fetch(folder, name, file)
            file.seek(0)
            try:
                with tarfile.open(fileobj=file, mode="r:gz") as archive:
                    for member in archive:
                        # Only files and folders below `root`, whatever the archive contains.
                        target = (root / member.name).resolve()
                        if (member.isfile() or member.isdir()) and root in target.parents:
                            archive.extract(member, root, set_attrs=False)
            except (tarfile.TarError, EOFError, OSError) as error:
                raise BatchFailed(NOT_BROUGHT.format(what=name, why=error)) from None

    async def _fetch(self, folder: str, name: str, file: IO[bytes]) -> None:
        # As text, since a host returns lines; in long lines, to have fewer of them.
        code = f"""
            set -o pipefail; echo "{own_folder.MARK}"
            enter "$0" && tar -czf - -- "$1" | base64 -w {LINE}
        """
        said: deque[str] = deque(maxlen=20)
        has_begun = False

        def take(line: str) -> None:
            nonlocal has_begun
            if not has_begun:  # a greeting of the login shell's may look like data
                has_begun = line == own_folder.MARK
            elif data := _decoded(line):
                file.write(data)
            else:
                said.append(line)

        words = ["bash", "-c", own_folder.ENTER_FUNCTION + code, folder, name]
        # Without a timeout: it ends if the connection is lost.
        done = await self.place.run(words, on_line=take)
        if not done.ok:
            why = "\n".join(said) or f"status {done.returncode}"
            raise BatchFailed(NOT_BROUGHT.format(what=name, why=why))

    async def _inside(self, code: str, argument: str) -> commands.Completed:
        """Run `code` in the folder, if that exists. Raises BatchFailed if it is not the user's."""
        begin = f'{own_folder.PRESENT_FUNCTION}present "$1" || exit 0'
        done = await self._run_at_site(f"{begin}\n{_ENTER}\n{code}", argument)
        if done.returncode == own_folder.STATUS_REFUSED:
            raise BatchFailed(done.tail())
        return done

    async def _run_at_site(
        self, code: str, argument: str, input: str | None = None
    ) -> commands.Completed:
        words = ["bash", "-c", own_folder.marked(code), "bash", str(self.folder.path), argument]
        done = await self.place.run(
            words, timeout=UPLOAD_TIMEOUT_S if input else COMMAND_TIMEOUT_S, input=input
        )
        is_marked = own_folder.MARK in done.output
        return replace(done, output=own_folder.said(done.output)) if is_marked else done


async def follow(
    sent: BatchJob, scheduler: Scheduler, job: str, show: Callable[[str], None]
) -> Progress:
    """Wait until the job is over; return how it ended. `show(words)` is called with its state."""

    async def look() -> tuple[JobStatus, Progress]:
        status = await scheduler.status(job)
        if status.state in ("ended", "gone"):
            return status, await outcome(sent, job, status)
        return status, await sent.progress()

    while True:
        status, progress = await retry_until_known(look, job, show)
        if status.state in ("ended", "gone"):
            return progress
        if status.never:
            show(f"job {job} {status.words}: `rankroom jobs --cancel {job}` cancels it")
        else:
            running = status.state == "running" and progress.state == "running"
            show(f"job {job} {progress.words if running else status.words}")
        await asyncio.sleep(POLL_INTERVAL_S)


async def outcome(sent: BatchJob, job: str, status: JobStatus) -> Progress:
    """Return how a job that is over ended: from what it wrote, or else from the scheduler."""
    for _ in range(int(RESULT_VISIBLE_TIMEOUT_S / POLL_INTERVAL_S)):
        progress = await sent.progress()
        if progress.state in ("done", "failed"):
            return progress
        await asyncio.sleep(POLL_INTERVAL_S)
    where = f", in cell {progress.cell} of {progress.cells}" if progress.cell else ""
    log = await sent.log(job)
    said = f"; its log ends with:\n{log}" if log else ""
    progress.state, progress.why = "failed", f"job {job} {status.words}{where}{said}"
    return progress


def files(folder: BatchFolder, notebook: Notebook, script: str, job: str) -> dict[str, str]:
    """Return the files of a batch job before it runs, the text by path; no outputs are sent."""
    empty: Notebook = {"outputs": [], "execution_count": None}
    cells = [each | empty if each["cell_type"] == "code" else each for each in notebook["cells"]]
    return {
        str(folder.notebook): json.dumps(notebook | {"cells": cells}, indent=1) + "\n",
        str(folder.script): script,
        str(folder.job): job,
    }


def _decoded(line: str) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except ValueError:
        return b""  # a message among the lines; data that it breaks will not unpack


_ENTER = own_folder.ENTER_FUNCTION + 'enter "$1" || exit'
NOT_PUT = "cannot write {path} at the site:\n{said}"
RECORDS_MISSING = (
    "{missing} of {count} records could not be brought here, the others and the notebook were:\n"
    "{why}"
)
NOT_BROUGHT = "{what} cannot be copied from the site: {why}"
