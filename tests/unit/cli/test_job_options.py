"""Job options are refused where no job is submitted; what Ctrl-C does to a job."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import nbformat
import pytest
from click.testing import CliRunner

from rankroom.cli import batch_command, main
from rankroom.cluster.local import Cluster
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler import site
from rankroom.scheduler.site import Site


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--nodes", "2", "train.py"],
        ["cluster", "start", "--nodes", "2"],
        ["batch", "train.ipynb", "--nodes", "2"],
        ["batch", "train.ipynb", "--nodes", "2", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_job_options_without_a_site_are_refused_and_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    started: list[object] = []
    monkeypatch.setattr(Cluster, "local", lambda *words, **options: started.append(words))
    monkeypatch.setattr(batch_command, "_run_here", lambda *words: started.append(words))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    Path("train.ipynb").write_text(nbformat.writes(notebook))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    said = "Error: --nodes applies to a job only: name a site with --site NAME"
    assert done.output.splitlines()[-1] == said
    assert not started


def test_job_options_for_a_site_without_a_scheduler_are_refused(home: Path):
    done = CliRunner().invoke(main, ["cluster", "start", "--site", "local", "--nodes", "2"])
    assert done.exit_code == 1
    assert done.output == "Error: --nodes applies to a job only, and local has no scheduler\n"


def test_the_local_site_starts_ranks_on_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch):
    info = SimpleNamespace(notes=[])
    made = SimpleNamespace(info=info, describe=lambda: "2 ranks here", close=lambda: None)
    monkeypatch.setattr(Cluster, "local", lambda *words, **options: made)
    done = CliRunner().invoke(main, ["cluster", "start", "--site", "local"])
    assert (done.exit_code, done.output) == (0, "2 ranks here\n")


def press(*words: Any, **options: Any) -> NoReturn:
    raise KeyboardInterrupt


def test_ctrl_c_while_local_ranks_start_exits_with_status_130(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cluster, "local", press)
    done = CliRunner().invoke(main, ["cluster", "start"])
    assert (done.exit_code, done.output) == (130, "")


def test_ctrl_c_leaves_the_job_of_a_cluster_and_says_so(monkeypatch: pytest.MonkeyPatch):
    info = SimpleNamespace(remote=SimpleNamespace(job="7"))
    waits = SimpleNamespace(name="far", until_ready=press, refresh=lambda: info)
    monkeypatch.setattr(site, "load", Site)
    monkeypatch.setattr(RemoteCluster, "start", lambda *words: waits)
    done = CliRunner().invoke(main, ["cluster", "start", "--site", "far"])
    assert done.exit_code == 130
    assert done.output == (
        "job 7 was not cancelled: `%cluster attach far` in a notebook waits for its ranks, "
        "`rankroom cluster stop far` cancels it\n"
    )


@pytest.mark.parametrize(
    ("place", "words"), [("login", "`rankroom batch --collect 7` brings"), ("", "nb.ipynb")]
)
def test_ctrl_c_leaves_a_batch_job_and_says_where_its_results_will_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, words: str
):
    async def follow(*about: Any) -> None:
        await asyncio.sleep(60)

    async def pressed() -> None:
        if (me := asyncio.current_task()) is not None:
            asyncio.get_running_loop().call_later(0.01, me.cancel)
        await batch_command._finish(sent, None, "7", Path("nb.ipynb"))  # type: ignore[arg-type]

    sent: Any = SimpleNamespace(place=SimpleNamespace(name=place))
    monkeypatch.setattr(batch_command, "follow", follow)
    with pytest.raises(SystemExit) as end:
        asyncio.run(pressed())
    assert end.value.code == 130
    said = capsys.readouterr().out
    assert said.startswith("job 7 was not cancelled: ") and words in said
