"""Notebooks as batch jobs: their conversion to scripts, and runs on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner

from rankroom.batch import batch_script, notebook_script
from rankroom.batch.batch_folder import FOLDER_VARIABLE, BatchFailed, BatchFolder, Progress, named
from rankroom.batch.batch_job import BatchJob
from rankroom.batch.cell_text import said
from rankroom.cli import main
from rankroom.cluster.base import AnyCluster
from rankroom.display.bundle import MIME
from rankroom.errors import UsageError
from rankroom.notebook import cluster_magic
from rankroom.record.store import Store
from rankroom.scheduler import site as sites
from rankroom.scheduler.site import Environment, Site
from rankroom.scheduler.submitted_jobs import all_submitted
from rankroom.ssh.host import LocalHost
from rankroom.system import python_command
from record_makers import start_record

START = "%load_ext rankroom\n%cluster start --ranks 2"


def notebook(*sources: str | list[str] | tuple[str, str]) -> dict[str, Any]:
    """Return a notebook: a source is a code cell, a pair (kind, source) one of another kind."""
    made = []
    for number, each in enumerate(sources):
        kind, source = each if isinstance(each, tuple) else ("code", each)
        cell: dict[str, Any] = {
            "cell_type": kind, "id": f"c{number}", "metadata": {}, "source": source,
        }  # fmt: skip
        if kind == "code":
            cell |= {"outputs": [], "execution_count": None}
        made.append(cell)
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}


@pytest.fixture
def written(tmp_path: Path):
    """A function that writes a notebook and returns its path."""

    def write(*sources: str | tuple[str, str]) -> Path:
        folder = tmp_path / "it's mine"
        folder.mkdir(exist_ok=True)
        file = folder / "train.ipynb"
        file.write_text(json.dumps(notebook(*sources)))
        return file

    return write


def test_a_script_holds_the_notebooks_text_and_code_in_order():
    made = notebook(("markdown", "# Train\n\nit"), START, ("raw", "no"), "", ["x = 1\n", "x"])
    assert notebook_script.script(made, "train.ipynb", granted=True) == (
        "# train.ipynb, as a batch job: its cells in their order, as IPython runs them.\n"
        "# `rankroom batch` made this file, and the job runs it: what is changed here is what "
        "runs.\n"
        "# %%distributed cells run on the ranks of the job, all others in one kernel.\n"
        "\n"
        "# %% [markdown]\n# # Train\n#\n# it\n"
        "\n"
        "# %% [2]\n%load_ext rankroom\n# In the notebook: %cluster start --ranks 2\n"
        "%cluster start\n"
        "\n"
        "# %% [5]\nx = 1\nx\n"
    )


def test_cells_read_back_from_a_script_equal_the_notebooks():
    sources = [
        START,
        "%%distributed --ranks 0\nprint('# %% no mark')\n\n\nrank",
        "text = '''\n\n'''",
    ]
    text = notebook_script.script(notebook(*sources), "a", granted=False)
    assert notebook_script.cells_of(text) == [
        notebook_script.Cell(n, each) for n, each in enumerate(sources, 1)
    ]


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_a_line_feed_ends_a_line_of_a_script(character: str):
    """In Python, these characters do not end a line either: they are part of a string literal."""
    sources = [f"{START}\nx = 'a{character}b'", f"y = 'a{character}# %% [1]'"]
    text = notebook_script.script(notebook(*sources), "a", granted=False)
    assert [cell.source for cell in notebook_script.cells_of(text)] == sources


def test_windows_line_endings_become_line_feeds():
    text = notebook_script.script(notebook("x = 1\r\ny", ("markdown", "a\r\nb")), "a", True)
    assert text.endswith("# %% [1]\nx = 1\ny\n\n# %% [markdown]\n# a\n# b\n")


@pytest.mark.parametrize("mark", ["%% [1]", "%% [markdown]", "%% [added]  "])
def test_text_that_looks_like_a_mark_begins_no_cell(mark: str):
    text = notebook_script.script(notebook("x", ("markdown", f"see\n{mark}\nit")), "a", True)
    assert notebook_script.cells_of(text) == [notebook_script.Cell(1, "x")]
    assert f"#  {mark}\n# it\n" in text


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("GPU 0: A100\r\nGPU 1: A100\r\n", "GPU 0: A100\nGPU 1: A100\n"),
        ("10%\r100%\r\ndone", "100%\ndone\n"),
        ("10%\r100%\r        \r", ""),
        ("10%\r", "10%\n"),
    ],
)
def test_carriage_returns_in_output_are_applied_as_in_a_terminal(written: str, left: str):
    assert said([nbformat.v4.new_output("stream", text=written)]) == left


@pytest.mark.parametrize(
    ("line", "granted", "here"),
    [
        ("%cluster start", "%cluster start", "%cluster start"),
        ("%cluster start --ranks 4", "%cluster start", "%cluster start --ranks 4"),
        (
            "%cluster start --site there --nodes 2 --time 01:00:00 --name mine --auto-restart",
            "%cluster start --name mine --auto-restart",
            "%cluster start --name mine --auto-restart",
        ),
        ("  %cluster start --ranks=3 --name=a", "  %cluster start --name a",
         "  %cluster start --ranks 3 --name a"),
        ("%cluster attach there-1a2b", "%cluster start", "%cluster start"),
        ("%cluster start --name 'it", "%cluster start --name 'it", "%cluster start --name 'it"),
        (
            "%cluster start --ranks 2 --preload torch,horovod.torch",
            "%cluster start --preload torch,horovod.torch",
            "%cluster start --ranks 2 --preload torch,horovod.torch",
        ),
        ("%cluster start --preload=torch --site there", *["%cluster start --preload torch"] * 2),
        ("%cluster start --site a --dry-run", "pass", "pass"),
        ("%cluster stop", "%cluster stop", "%cluster stop"),
        ("x = '%cluster start --ranks 2'", *["x = '%cluster start --ranks 2'"] * 2),
    ],
)  # fmt: skip
def test_cluster_start_is_adapted_to_run_inside_the_job(line: str, granted: str, here: str):
    assert notebook_script.adapted(line, True).splitlines()[-1] == granted
    assert notebook_script.adapted(line, False).splitlines()[-1] == here


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            "x = 1\n%cluster start --site a --nodes 2 \\\n    --gpus-per-node 4 \\\n  --name b\ny",
            "x = 1\n# In the notebook: %cluster start --site a --nodes 2      --gpus-per-node 4"
            "    --name b\n%cluster start --name b\ny",
        ),
        ("%cluster stop \\\n a", "%cluster stop \\\n a"),
        ("%cluster start \\", "%cluster start \\"),
        ("x = 'a \\\n%cluster'", "x = 'a \\\n%cluster'"),
        (
            "%%time\n%cluster start --site a",
            "%%time\n# In the notebook: %cluster start --site a\n%cluster start",
        ),
        (
            "%%local\n%cluster start --site a",
            "%%local\n# In the notebook: %cluster start --site a\n%cluster start",
        ),
        (
            "\n%%capture out\n%cluster attach a",
            "\n%%capture out\n# In the notebook: %cluster attach a\n%cluster start",
        ),
    ],
)
def test_cluster_start_is_adapted_however_it_is_written(source: str, found: str):
    assert notebook_script.adapted(source, True) == found


def test_the_script_starts_the_requested_number_of_ranks():
    made = notebook(START, "%%distributed\nrank")
    assert "\n%cluster start --ranks 8" in notebook_script.script(made, "a", True, ranks=8)
    made = notebook("%%distributed\nrank")
    text = notebook_script.script(made, "a", True, ranks=8)
    assert "%load_ext rankroom\n# In the notebook: %cluster start\n%cluster start --ranks 8" in text


def test_a_cluster_of_a_site_is_not_started_from_a_job(home, monkeypatch):
    monkeypatch.setattr(AnyCluster, "current", None)  # another test may have left one
    monkeypatch.setenv(FOLDER_VARIABLE, "/job")
    with pytest.raises(UsageError, match="this is a batch job, and its ranks run in it"):
        cluster_magic.start("--site perlmutter --nodes 1")


def test_cluster_start_inside_a_distributed_cell_is_left_unchanged():
    source = "%%distributed\n%cluster start --site there"
    assert notebook_script.adapted(source, True) == source


def test_the_script_starts_ranks_that_the_user_had_started_in_the_sidebar():
    text = notebook_script.script(notebook("x = 1", "%%distributed\nrank"), "a", True)
    added, sent = [cell for cell in notebook_script.cells_of(text) if cell.number != 1]
    assert (added.number, sent.number) == (0, 2)
    assert added.source.endswith("%load_ext rankroom\n%cluster start")


@pytest.mark.parametrize(
    ("source", "adds"),
    [
        ("%course 3", False),
        ("%course", True),
        ("%cluster start --dry-run", True),
        ("%cluster start \\\n    --site a --dry-run", True),
    ],
)
def test_a_start_of_ranks_is_added_only_if_no_cell_starts_them(source: str, adds: bool):
    text = notebook_script.script(notebook(source, "%%distributed\nrank"), "a", True)
    assert ("Nothing before this starts ranks" in text) == adds


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", "{}", '{"nbformat": 3, "worksheets": [], "cells": []}']
)
def test_a_file_that_is_no_notebook_is_refused_with_a_remedy(tmp_path: Path, text: str):
    file = tmp_path / "a.ipynb"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"a\.ipynb is not a notebook .* open it in JupyterLab"):
        notebook_script.read(file)
    with pytest.raises(UsageError, match="No such file"):
        notebook_script.read(tmp_path / "b.ipynb")


def test_a_notebook_that_cannot_become_a_script_is_refused_with_the_cause():
    with pytest.raises(UsageError, match="cell 1 has a line `# %% \\[3\\]`"):
        notebook_script.script(notebook("x\n# %% [3]"), "a", True)
    with pytest.raises(UsageError, match="a has no cell with code"):
        notebook_script.script(notebook(("markdown", "text"), " "), "a", True)


def test_a_jobs_name_contains_only_letters_digits_and_hyphens():
    at = time.mktime((2026, 11, 22, 9, 30, 0, 0, 0, -1))
    made = named(Path("/a/my (new) nötes.ipynb"), at)
    assert re.fullmatch("my-new-n-tes-20261122-093000-[0-9a-f]{6}", made)
    assert named(Path("/a/$.ipynb"), at).startswith("notebook-20261122-093000-")


def test_folder_names_are_quoted_in_the_job_script():
    site = Site("a", environment=Environment(python="~/py/bin/python"))
    found = batch_script.commands(site, BatchFolder("/s/it's"), "/home/a b", "")
    assert """enter '/s/it'"'"'s'""" in found
    start = f"""{python_command.SHELL_ASSIGNMENTS} exec "$HOME/py/bin/python" -c 'import sys; """
    assert found[-1].startswith(start)
    assert found[-1].endswith("""' rankroom.batch.runner . --cwd '/home/a b'""")


def test_a_jobs_progress_is_read_back_and_unknown_fields_are_ignored():
    made = Progress("running", 2, 5, "loss = 1", runs=["a"])
    assert Progress.from_json(made.to_json()) == made
    assert made.words == "is running cell 2 of 5: loss = 1"
    assert Progress.from_json('{"state": "done", "cells": 3, "newer": 1}').words == (
        "all 3 cells have run"
    )
    assert Progress.from_json("").words == "has not started"


def test_collecting_a_job_copies_the_notebook_and_each_record_once(tmp_path: Path, home: Path):
    _, run, writer = start_record(tmp_path / "there")
    writer.close()
    folder = BatchFolder(tmp_path / "job's")
    sent = BatchJob(LocalHost(), folder)
    asyncio.run(sent.put({str(folder.executed): "{}"}))
    progress = Progress("done", 1, 1, home=str(tmp_path / "there"), runs=[run.id])
    copy = tmp_path / "copy.ipynb"
    assert asyncio.run(sent.bring(progress, copy, Store())) == 1
    assert copy.read_text() == "{}"
    assert Store().load(run.id).id == run.id
    assert asyncio.run(sent.bring(progress, copy, Store())) == 0
    progress.runs.append("20261122-000000-000000")
    with pytest.raises(BatchFailed, match="cannot be copied from"):
        asyncio.run(sent.bring(progress, copy, Store()))


def test_without_a_site_the_job_uses_the_python_of_this_command(home):
    """`python` on PATH may be another interpreter, or missing."""
    local = sites.load("local")
    [*_, last] = batch_script.commands(local, BatchFolder("/s"), "", "")
    assert f" exec {sys.executable} -c " in last
    own = replace(local, environment=Environment(setup=("source env.sh",)))
    [*_, last] = batch_script.commands(own, BatchFolder("/s"), "", "")
    assert ' exec "python" -c ' in last


def test_a_notebook_is_submitted_as_a_scheduler_job(fake, home, written, monkeypatch):
    profile = home.parent / "config" / "rankroom" / "sites" / "there.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f'scratch = "{home.parent}/scratch"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent / "config"))
    file = written(START, "1")
    words = ["batch", str(file), "--site", "there", "--nodes", "3", "--time", "00:20:00"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    [kept] = all_submitted()
    assert kept.name.startswith("train-")
    script = fake.script(kept.job)
    assert "#SBATCH --nodes=3\n" in script
    assert "#SBATCH --no-requeue\n" in script
    folder = home.parent / "scratch" / "batch" / kept.name
    assert f"\nenter {folder}\n" in script
    assert {each.name for each in folder.iterdir()} == {"notebook.ipynb", "cells.ipy", "job.sh"}
    assert folder.stat().st_mode & 0o077 == 0
    assert str(file.with_name(f"{kept.name}.ipynb")) in done.output


def test_collecting_an_unknown_job_is_refused(home):
    done = CliRunner().invoke(main, ["batch", "--collect", "99"])
    assert done.exit_code == 1
    assert "job 99 was not submitted from here" in done.output


def run_here(file: Path) -> tuple[int, str, dict[str, Any]]:
    """Run a notebook as a batch job here; return exit status, output and the executed copy."""
    done = CliRunner().invoke(main, ["batch", str(file)])
    [copy] = file.parent.glob("train-*.ipynb")
    return done.exit_code, done.output, json.loads(copy.read_text())


@pytest.mark.cluster
def test_a_notebook_runs_here_as_it_would_in_jupyterlab(home, written):
    file = written(
        ("markdown", "# It"),
        START,
        "x = 20",
        "%%distributed\nprint('line', rank)\nrank * 10",
        "x + 1",
    )
    status, said, copy = run_here(file)
    assert status == 0, said
    assert "all 4 cells have run" in said
    run, value = (cell["outputs"][0]["data"] for cell in copy["cells"][3:])
    assert run[MIME]["run"]["state"] == "done"
    assert value["text/plain"] == ["21"]
    [record] = Store().newest()
    assert (record.state, record.lines) == ("done", 2)
    assert not list((home / "clusters").iterdir()), "its ranks have ended with it"


@pytest.mark.cluster
def test_a_job_waits_for_a_cell_that_is_detached(home, written):
    status, said, _ = run_here(written(START, "%%distributed --detach\nimport time; time.sleep(1)"))
    assert status == 0, said
    assert Store().newest()[0].state == "done"


@pytest.mark.cluster
def test_a_failed_cell_ends_the_job(home, written):
    file = written(START, "%%distributed\nif rank == 1:\n    1 / 0", "open('never', 'w')")
    status, said, copy = run_here(file)
    assert status == 1
    assert "cell 2 of 3 failed, if rank == 1:: RunFailed: rank 1 failed first" in said
    assert copy["cells"][1]["outputs"][-1]["ename"] == "RunFailed"
    assert copy["cells"][2]["outputs"] == []
    assert not (file.parent / "never").exists()
    assert Store().newest()[0].state == "failed"
    assert not list((home / "clusters").iterdir())


@pytest.mark.cluster
def test_an_allowed_failure_does_not_end_the_job_and_is_saved_at_once(home, written):
    """The executed copy is saved after each cell, so the next cell can read the error in it."""
    file = written("1 / 0", SEEN)
    made = json.loads(file.read_text())
    made["cells"][0]["metadata"] = {"tags": ["raises-exception"]}
    file.write_text(json.dumps(made))
    status, said, copy = run_here(file)
    assert status == 0, said
    assert copy["cells"][1]["outputs"][0]["data"]["text/plain"] == ["'ZeroDivisionError'"]


SEEN = """
import json, os, pathlib
so_far = json.loads(pathlib.Path(os.environ["RANKROOM_BATCH"], "executed.ipynb").read_text())
so_far["cells"][0]["outputs"][-1]["ename"]
"""


@pytest.mark.cluster
def test_child_processes_of_a_cell_can_be_terminated(home, written):
    status, said, _ = run_here(written(ENDED))
    assert status == 0, said


ENDED = """
import os, signal, subprocess
os.kill(os.getpid(), signal.SIGTERM)
child = subprocess.Popen(["sleep", "60"])
child.terminate()
child.wait(20)
"""


@pytest.mark.cluster
def test_a_kernel_that_dies_ends_the_job_and_leaves_nothing(home, written):
    status, said, _ = run_here(written(START, "import os; os._exit(3)"))
    assert status == 1
    assert "cell 2 of 2 failed, import os; os._exit(3): the kernel died" in said
    assert not list((home / "clusters").iterdir())
