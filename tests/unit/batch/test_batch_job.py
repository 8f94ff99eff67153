"""A batch job as seen from where it was submitted, at a site where things go wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import psutil
import pytest
from click.testing import CliRunner
from jupyter_client import AsyncKernelManager

from rankroom.batch import batch_job, notebook_script, runner
from rankroom.batch.batch_folder import FOLDER_VARIABLE, BatchFailed, BatchFolder, Progress, named
from rankroom.batch.batch_job import BatchJob
from rankroom.batch.own_kernel import OwnKernel
from rankroom.batch.runner import Runner
from rankroom.cli import batch_command, main
from rankroom.errors import SchedulerError, UsageError
from rankroom.record.store import Store
from rankroom.scheduler.jobs import JobStatus
from rankroom.scheduler.site import Site
from rankroom.scheduler.submitted_jobs import Submitted
from rankroom.ssh.connection import SshConnection
from rankroom.ssh.host import LocalHost
from rankroom.system import process_tree
from rankroom.system.commands import Completed
from rankroom.system.polling import poll_until
from record_makers import start_record

NOTEBOOK = {
    "nbformat": 4, "nbformat_minor": 2, "metadata": {},
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": "# It"},
        {"cell_type": "code", "metadata": {}, "source": "1", "execution_count": 3,
         "outputs": [{"output_type": "stream", "name": "stdout", "text": "\ud83d"}]},
        {"cell_type": "code", "metadata": {}, "source": "1", "outputs": [],
         "execution_count": None},
    ],
}  # fmt: skip


class Answering(LocalHost):
    """A site where every command has the same exit status and output."""

    def __init__(self, returncode: int, output: str, timed_out: bool = False) -> None:
        self.answer = returncode, output, timed_out

    async def run(self, argv: Any, on_line: Any = None, **how: Any) -> Completed:
        for line in self.answer[1].splitlines() if on_line else ():
            on_line(line)
        return Completed(tuple(argv), *self.answer)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a batch job's folder, with NOTEBOOK and the given script."""

    def write(script: str) -> Path:
        (tmp_path / "notebook.ipynb").write_text(json.dumps(NOTEBOOK))
        (tmp_path / "cells.ipy").write_text(script)
        return tmp_path

    return write


@pytest.fixture
def ready(job, home, monkeypatch) -> Iterator[Callable[..., Runner]]:
    """Return a function that makes the Runner of such a job."""
    for name in (FOLDER_VARIABLE, process_tree.JOB_MARK):  # `Runner.run` sets them
        monkeypatch.setenv(name, "")
    made: list[Runner] = []

    def make(script: str = "# %% [2]\n1\n", copy: str = "") -> Runner:
        made.append(Runner(job(script), "", copy))
        return made[-1]

    yield make
    for each in made:
        shutil.rmtree(each.sockets, ignore_errors=True)  # `Runner.run` removes them itself


def test_jobs_that_are_submitted_at_once_have_folders_of_their_own():
    assert len({named(Path(f"{each}/train.ipynb"), 0.0) for each in "abc"}) == 3


def test_an_unreadable_job_state_is_a_scheduler_error_not_a_failed_job():
    sent = BatchJob(Answering(254, "bash: fork: Resource temporarily unavailable"), FOLDER)
    with pytest.raises(SchedulerError, match="status 254"):
        asyncio.run(batch_job.outcome(sent, "7", JobStatus("7", "gone")))
    with pytest.raises(SchedulerError, match="timed out"):
        asyncio.run(BatchJob(Answering(-9, "", True), FOLDER).progress())


def test_an_inaccessible_folder_is_an_error_and_a_missing_one_has_no_result(tmp_path: Path):
    """For instance, a Kerberos ticket may have expired. A folder that does not exist has none."""
    broken = tmp_path / "there"
    broken.symlink_to(broken)
    sent = BatchJob(LocalHost(), BatchFolder(broken / "job"))
    with pytest.raises(SchedulerError, match="Too many levels of symbolic links"):
        asyncio.run(sent.progress())
    sent = BatchJob(LocalHost(), BatchFolder(tmp_path / "nothing" / "job"))
    assert asyncio.run(sent.progress()).state == "waiting"
    assert asyncio.run(sent.log("7")) == ""


def test_a_state_file_that_is_not_a_json_object_is_ignored():
    assert [Progress.from_json(each).state for each in ("null", "[]")] == ["waiting"] * 2


def test_a_notebook_is_sent_without_outputs():
    made = batch_job.files(FOLDER, NOTEBOOK, "script", "job")
    sent = json.loads(made[str(FOLDER.notebook)].encode())
    assert [each.get("outputs", []) for each in sent["cells"]] == [[]] * 3
    assert NOTEBOOK["cells"][1]["execution_count"] == 3


def test_a_site_that_times_out_is_reported():
    sent = BatchJob(Answering(-9, "--- rankroom ---\n", True), FOLDER)
    with pytest.raises(BatchFailed, match="no answer within 300 s"):
        asyncio.run(sent.put({"/job/cells.ipy": "x"}))


def test_a_failed_fetch_shows_the_error_without_the_data(tmp_path: Path):
    said = f"{'H4sI' * 1000}\ntar: run: Cannot open: Permission denied\n{'AAAA' * 1000}\n"
    said = f"--- rankroom ---\n{said}"
    sent = BatchJob(Answering(2, said), FOLDER)
    with pytest.raises(BatchFailed) as error:
        asyncio.run(sent.bring(Progress(), tmp_path / "copy.ipynb", Store()))
    assert str(error.value).endswith("from the site: tar: run: Cannot open: Permission denied")


class Greeting(LocalHost):
    """A site whose login shell prints a word that is valid base64."""

    async def run(self, argv: Any, on_line: Any = None, **how: Any) -> Completed:
        if on_line:
            on_line("node0001")
        return await super().run(argv, on_line=on_line, **how)


def test_a_login_greeting_that_looks_like_base64_is_ignored(tmp_path: Path, home: Path):
    folder = BatchFolder(tmp_path / "job")
    sent = BatchJob(Greeting(), folder)
    asyncio.run(sent.put({str(folder.executed): "{}"}))
    asyncio.run(sent.bring(Progress(), tmp_path / "copy.ipynb", Store()))
    assert (tmp_path / "copy.ipynb").read_text() == "{}"


def test_fetched_records_are_kept_when_another_cannot_be_fetched(tmp_path: Path, home: Path):
    _, run, writer = start_record(tmp_path / "there")
    writer.close()
    folder = BatchFolder(tmp_path / "job")
    sent = BatchJob(LocalHost(), folder)
    asyncio.run(sent.put({str(folder.executed): "{}"}))
    lacks = ["20261122-000000-000000", run.id]
    progress = Progress("done", 1, 1, home=str(tmp_path / "there"), runs=lacks)
    with pytest.raises(BatchFailed, match=f"1 of 2 records could not (?s:.+){lacks[0]}"):
        asyncio.run(sent.bring(progress, tmp_path / "copy.ipynb", Store()))
    assert Store().load(run.id).id == run.id


def test_records_are_fetched_though_the_notebook_is_missing(tmp_path: Path, home: Path):
    """A full quota may have left no room for the notebook."""
    _, run, writer = start_record(tmp_path / "there")
    writer.close()
    folder = BatchFolder(tmp_path / "job")
    sent = BatchJob(LocalHost(), folder)
    asyncio.run(sent.put({"other": ""}))
    progress = Progress("done", 1, 1, home=str(tmp_path / "there"), runs=[run.id])
    with pytest.raises(BatchFailed, match=r"executed\.ipynb"):
        asyncio.run(sent.bring(progress, tmp_path / "copy.ipynb", Store()))
    assert Store().load(run.id).id == run.id


def test_the_temporary_folder_for_results_may_be_a_symlink(tmp_path: Path, home, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    folder = BatchFolder(tmp_path / "job")
    sent = BatchJob(LocalHost(), folder)
    asyncio.run(sent.put({str(folder.executed): "{}"}))
    assert asyncio.run(sent.bring(Progress(), tmp_path / "copy.ipynb", Store())) == 0
    assert (tmp_path / "copy.ipynb").read_text() == "{}"


# -- `rankroom batch`


def test_the_working_folder_is_resolved_where_the_cells_run(tmp_path: Path, monkeypatch):
    (tmp_path / "it.ipynb").write_text(json.dumps(NOTEBOOK))
    monkeypatch.chdir(tmp_path)

    def script(cwd: str, remote: bool) -> str:
        asked = batch_command._BatchRequest(Site("a"), tmp_path / "it.ipynb", cwd, None)
        return asked.job(FOLDER, remote)

    assert f"--cwd {tmp_path} " in script(".", False)
    assert f"--cwd {Path.home()}/data " in script("~/data", False)
    assert script("~/data", True).rstrip().endswith("--cwd '~/data'")
    with pytest.raises(UsageError, match="has to begin with /"):
        script("data", True)


@pytest.mark.parametrize(
    ("progress", "is_kept"),
    [
        (Progress("done", 2, 2, copy="/it-1.ipynb"), False),
        (Progress("done", 2, 2), True),  # the folder has the only executed notebook
        (Progress("failed", 1, 2, why="no", copy="/it-1.ipynb"), True),
        (Progress("running", 1, 2, copy="/it-1.ipynb"), True),
    ],
)
def test_the_folder_of_a_local_batch_run_is_kept_only_if_it_is_still_needed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress, is_kept: bool
):
    (tmp_path / "it.ipynb").write_text(json.dumps(NOTEBOOK))

    def play(argv: list[str], **how: Any) -> Completed:
        progress.write(Path(argv[1]).with_name("state.json"))
        return Completed(tuple(argv), int(progress.state != "done"), "")

    monkeypatch.setattr(batch_command.shell, "run_sync", play)
    done = CliRunner().invoke(main, ["batch", str(tmp_path / "it.ipynb")])
    assert done.exit_code == int(progress.state != "done"), done.output
    assert bool(list((home / "batch").iterdir())) == is_kept


def test_a_missing_folder_for_the_executed_notebook_is_refused_before_it_runs(
    tmp_path: Path, home: Path
):
    (tmp_path / "it.ipynb").write_text(json.dumps(NOTEBOOK))
    copy = tmp_path / "no" / "copy.ipynb"
    Submitted("one", "", "7", "train", 1.0, str(copy)).write()
    for words in ([str(tmp_path / "it.ipynb"), "-o", str(copy)], ["--collect", "7"]):
        done = CliRunner().invoke(main, ["batch", *words])
        assert done.exit_code == 1
        assert f"there is no folder {copy.parent} for the executed notebook" in done.output
    folder = BatchFolder(tmp_path / "job")
    sent = BatchJob(LocalHost(), folder)
    asyncio.run(sent.put({str(folder.executed): "{}"}))
    with pytest.raises(BatchFailed, match=r"copy\.ipynb cannot be copied from .*No such file"):
        asyncio.run(sent.bring(Progress(), copy, Store()))


def test_ending_the_batch_command_ends_its_kernel(tmp_path: Path, home: Path):
    """Its kernel ends, too, and the notebook is saved as far as it was executed."""
    pid = tmp_path / "pid"
    cell = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    cells = [{**NOTEBOOK["cells"][-1], "source": cell}]
    (tmp_path / "it.ipynb").write_text(json.dumps({**NOTEBOOK, "cells": cells}))
    words = [sys.executable, "-m", "rankroom", "batch", "it.ipynb", "-o", "out.ipynb"]
    command = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert poll_until(lambda: pid.exists() and pid.read_text(), 60.0)
    kernel = psutil.Process(int(pid.read_text()))
    command.terminate()
    assert command.wait(60) == 128 + signal.SIGTERM
    assert not kernel.is_running()
    assert "KeyboardInterrupt" in (tmp_path / "out.ipynb").read_text()


def test_a_job_is_collected_from_the_named_site_into_its_saved_output_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Submitted("one", "", "7", "train", 1.0, str(tmp_path / "mine.ipynb")).write()
    Submitted("two", "", "7", "other", 2.0).write()
    done = CliRunner().invoke(main, ["batch", "--collect", "7"])
    assert done.exit_code == 1
    assert "job 7 exists at several sites (two, one)" in done.output
    brought: list[Any] = []

    async def finish(sent: BatchJob, scheduler: Any, number: str, copy: Path) -> None:
        brought.append((sent.folder.path.name, str(copy)))

    async def folder(self: Any) -> str:
        return "/scratch"

    monkeypatch.setattr(batch_command, "_finish", finish)
    monkeypatch.setattr(batch_command.sites, "load", Site)
    monkeypatch.setattr(batch_command.Scheduler, "folder", folder)
    done = CliRunner().invoke(main, ["batch", "--collect", "7", "--site", "one"])
    assert done.exit_code == 0, done.output
    assert brought == [("train", str(tmp_path / "mine.ipynb"))]


def test_the_ssh_connection_is_kept_open_while_a_job_is_followed(home, monkeypatch):
    """`keep` reconnects instead, and waits longer after each refusal."""
    line = SshConnection("login", terminal=False)
    kept = asyncio.Event()

    async def keep(tell: Any) -> None:
        kept.set()
        await asyncio.sleep(60)

    async def follow(*words: Any) -> Progress:
        await asyncio.wait_for(kept.wait(), 5)
        return Progress("done")

    monkeypatch.setattr(line, "keep", keep)
    monkeypatch.setattr(batch_command, "follow", follow)
    scheduler: Any = None
    asyncio.run(batch_command._finish(BatchJob(line, FOLDER), scheduler, "7", Path("/copy.ipynb")))


# -- scripts that users may edit


def test_added_cells_are_inserted_before_the_next_original_cell(ready):
    made = ready("# %% [added]\na\n# %% [added]\nb\n# %% [2]\n1\n# %% [3]\n1\n# %% [added]\nc\n")
    sources = [each.source for each in made.notebook.cells]
    assert sources == ["# It", "a", "b", "1", "1", "c"]
    assert [made.index(each) for each in made.shown] == [1, 2, 3, 4, 5]
    nbformat.validate(made.notebook)


@pytest.mark.parametrize("number", [1, 99])
def test_an_unknown_cell_number_in_a_script_is_refused(job, number: int):
    folder = job(f"# %% [{number}]\nx\n")
    with pytest.raises(SystemExit, match=rf"has a cell \[{number}\], but the notebook has no"):
        runner.main([str(folder)])


def test_a_missing_working_folder_is_refused(job):
    with pytest.raises(SystemExit, match="the working folder /nowhere does not exist on"):
        runner.main([str(job("# %% [2]\n1\n")), "--cwd", "/nowhere"])


def test_sockets_are_in_tmp_whatever_the_temporary_folder_is(ready, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(ready().sockets).parent == Path("/tmp")


def test_the_copy_is_saved_with_the_notebook_and_retried_after_a_failure(
    ready, tmp_path: Path, capsys
):
    copy = tmp_path / "copy.ipynb"
    made = ready(copy=str(copy))
    made.save()
    assert copy.read_text() == (tmp_path / "executed.ipynb").read_text()
    made.copy = str(tmp_path / "no" / "copy.ipynb")
    made.save()
    assert "copy.ipynb cannot be written (No such file" in capsys.readouterr().out
    assert made.progress.copy == ""
    (tmp_path / "no").mkdir()
    made.save()
    assert made.progress.copy == made.copy and Path(made.copy).exists()


def test_a_full_disk_does_not_end_a_job_and_saving_is_retried_at_the_end(
    ready, tmp_path: Path, monkeypatch, capsys
):
    write, tries = runner.write_atomically, []

    def refuse(path: Path, text: str, mode: int = 0o600) -> None:
        if path.parent == tmp_path and path.name == "executed.ipynb":
            tries.append(path)
            if len(tries) < 6:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        write(path, text, mode)

    monkeypatch.setattr(runner, "write_atomically", refuse)
    made = ready("# %% [2]\nprint('one')\n\n# %% [3]\nprint('two')\n")
    assert made.run() == 0
    said = capsys.readouterr().out
    assert "executed.ipynb cannot be written (Disk quota exceeded)" in said
    assert "one" in (tmp_path / "executed.ipynb").read_text() and "two" in said
    assert len(tries) == 6


def test_a_notebook_that_cannot_be_saved_fails_its_job(ready, tmp_path: Path, monkeypatch, capsys):
    """Its small state file may still fit. If that said `done`, the folder would be removed."""

    def refuse(*_: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runner, "write_atomically", refuse)
    monkeypatch.setattr(runner, "DISK_SPACE_TIMEOUT_S", 0.1)
    assert ready(copy=str(tmp_path / "copy.ipynb")).run() == 1
    kept = Progress.from_json((tmp_path / "state.json").read_text())
    assert (kept.state, kept.copy) == ("failed", "")
    assert "could not be written (No space left on device)" in kept.why
    assert "the executed notebook:" not in capsys.readouterr().out


def test_a_job_succeeds_if_only_the_copy_can_be_written(ready, tmp_path: Path, monkeypatch):
    (tmp_path / "executed.ipynb").mkdir()
    copy = tmp_path / "copy.ipynb"
    made = ready(copy=str(copy))
    assert made.run() == 0
    assert (made.progress.copy, copy.exists()) == (str(copy), True)


def test_the_timeout_for_a_cells_remaining_output_is_at_least_an_hour(ready):
    # By default, nbclient continues after 4 s without the rest of the output.
    assert ready().client.iopub_timeout >= 3600


def test_a_job_that_is_ended_after_its_last_cell_has_not_failed(ready):
    made = ready()
    made.progress.state = "done"
    made.end(signal.SIGTERM, None)
    assert (made.progress.state, made.ending) == ("done", "")


def test_a_job_that_is_ended_before_its_kernel_is_up_runs_no_cell(ready, tmp_path: Path):
    made = ready("# %% [2]\nopen('ran', 'w')\n")

    @contextmanager
    def slow() -> Iterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        made.client.kc = SimpleNamespace(execute=lambda *given, **how: None)
        yield

    made.client.setup_kernel = slow
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        assert made.run() == 1
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert made.progress.why == "the job was ended: in cell 1 of 1, open('ran', 'w')"
    assert not (tmp_path / "ran").exists()


def test_a_notebook_name_that_is_not_utf8_survives_in_the_job_script(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9")
    folder = BatchFolder(tmp_path / "job")
    text = notebook_script.script(NOTEBOOK, f"{name}.ipynb", False)
    sent = {str(folder.script): text, str(folder.job): f"cd {name}\n"}
    asyncio.run(BatchJob(LocalHost(), folder).put(sent))
    assert Path(folder.script).read_text("utf-8").startswith("# caf?.ipynb, as a batch job")
    assert Path(folder.job).read_bytes() == b"cd caf\xe9\n"


# How the kernel and the processes that its cells start handle SIGTERM, sent when a job ends.
STAYS = """
import multiprocessing, os, signal, subprocess, time
from rankroom.batch.kernel_signals import outlive_sigterm

outlive_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
child = subprocess.Popen(["sleep", "60"])
child.terminate()
fork = multiprocessing.get_context("fork")
begun = fork.Event()
forked = fork.Process(target=lambda: (begun.set(), time.sleep(60)))
forked.start()
begun.wait(20)
forked.terminate()
forked.join()
print(child.wait(), forked.exitcode)
"""


def test_a_batch_kernel_survives_sigterm_and_its_children_do_not():
    done = subprocess.run([sys.executable, "-c", STAYS], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{-signal.SIGTERM} {-signal.SIGTERM}\n", done.stderr


SHOWS = """
from rankroom.system.log_line import escape_what_cannot_be_shown, say
escape_what_cannot_be_shown()
say("\\u2588")
"""


def test_a_character_that_the_locale_lacks_is_escaped(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = subprocess.run([sys.executable, "-c", SHOWS], capture_output=True, text=True, timeout=30)
    assert done.stdout.endswith(" \\u2588\n"), done.stderr


def test_a_notebook_with_a_cell_without_a_type_is_refused(tmp_path: Path):
    file = tmp_path / "a.ipynb"
    file.write_text('{"nbformat": 4, "cells": [{"source": "x"}]}')
    with pytest.raises(UsageError, match="is not a notebook"):
        notebook_script.read(file)


FOLDER = BatchFolder("/job")


def test_an_interrupt_during_submission_cancels_the_job(monkeypatch, capsys):
    begun, cancelled = asyncio.Event(), []

    class Slow:
        def __init__(self, *given: Any) -> None:
            pass

        async def own_folder(self, what: str) -> str:
            return "/there"

        async def put(self, files: Any) -> None:
            pass

        async def submit(self, script: str, copy: str) -> str:
            begun.set()
            await asyncio.sleep(0.2)
            return "12"

        async def cancel(self, job: str) -> None:
            cancelled.append(job)

    for name, made in (("Scheduler", Slow), ("BatchJob", Slow), ("files", lambda *given: {})):
        monkeypatch.setattr(batch_command, name, made)
    asked = batch_command._BatchRequest.__new__(batch_command._BatchRequest)
    for name in ("notebook", "script", "copy"):
        object.__setattr__(asked, name, "")
    object.__setattr__(asked, "site", Site("mine"))
    object.__setattr__(asked, "name", "x")
    monkeypatch.setattr(batch_command._BatchRequest, "job", lambda self, *given: "")

    async def interrupted() -> None:
        submitting = asyncio.ensure_future(batch_command._submit(asked, LocalHost(), True))
        await begun.wait()
        for _ in range(2):  # a second Ctrl-C still waits for the submission
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
        await submitting

    with pytest.raises(SystemExit):
        asyncio.run(interrupted())
    assert cancelled == ["12"]
    assert "job 12 was cancelled, as you interrupted its submission" in capsys.readouterr().out


def test_cells_run_in_this_environment_whatever_kernels_the_user_has_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kernel = tmp_path / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": ["/other/python"], "display_name": "other"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert AsyncKernelManager(kernel_name="python3").kernel_spec.argv == ["/other/python"]
    assert OwnKernel(kernel_name="python3").kernel_spec.argv[0] == sys.executable
