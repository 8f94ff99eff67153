"""What is asked of a job is refused where none is submitted."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from rankroom.cli import batch_command, main
from rankroom.cluster.local import Cluster


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
def test_a_forgotten_site_is_said_and_nothing_starts(
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
    said = "Error: --nodes is for a job: say on which site, with --site NAME"
    assert done.output.splitlines()[-1] == said
    assert not started
