"""`make docs` stops a lesson's ranks, however the lesson ended, before it removes their home."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import nbclient
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from checkout import TOOLS
from rankroom.cluster import actions, lookup

spec = importlib.util.spec_from_file_location("documentation", TOOLS / "docs.py")
documentation = importlib.util.module_from_spec(spec)
spec.loader.exec_module(documentation)


@pytest.mark.parametrize("failure", [None, CellTimeoutError("too long"), DeadKernelError("died")])
def test_the_cluster_of_a_lesson_is_stopped_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
):
    ended: list[str] = []

    def execute() -> None:
        if failure is not None:
            raise failure

    def stop(name: str) -> None:
        assert Path(os.environ["RANKROOM_HOME"]).is_dir()
        ended.append(name)

    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))  # so that it is restored
    monkeypatch.setattr(documentation, "RUN", tmp_path / "run")
    monkeypatch.setattr(lookup, "running_clusters", lambda: [SimpleNamespace(name="course")])
    monkeypatch.setattr(actions, "stop", stop)
    monkeypatch.setattr(
        nbclient, "NotebookClient", lambda *words, **options: SimpleNamespace(execute=execute)
    )
    assert documentation.run_lessons(["00"]) == (failure is not None)
    assert ended == ["course"]
