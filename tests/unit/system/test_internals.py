"""Internals of other packages that Rankroom uses: what is missing is reported in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.errors import RankroomError
from rankroom.rank.frameworks.torch import torch_internals
from rankroom.reporting.spans import recorder
from rankroom.system.internals import demand

# Run in a separate process, so that it imports what was just installed.
ALL = """
from rankroom.rank import engine
from rankroom.supervisor.processes import controller
from rankroom.system.internals import demand
demand("ipyparallel", engine.engine_app, ["Kernel"])
demand("ipyparallel", engine.engine_app.IPEngine, engine.REQUIRED_ENGINE_NAMES)
demand("ipykernel", engine.IPythonParallelKernel, engine.REQUIRED_KERNEL_NAMES)
demand("ipyparallel", controller.IPController, controller.CONTROLLER_INTERNALS)
demand("ipyparallel", controller.heartmonitor.HeartMonitor, controller.HEART_MONITOR_INTERNALS)
"""


def test_a_package_lacking_names_is_refused_with_versions_that_have_them():
    demand("ipyparallel", SimpleNamespace(_send=1), ["_send"])
    with pytest.raises(RankroomError) as told:
        demand("ipyparallel", SimpleNamespace(_send=1), ["_send", "_gone", "_went"])
    assert "lacks SimpleNamespace._gone, SimpleNamespace._went" in str(told.value)
    assert "`pip install 'ipyparallel" in str(told.value)


def found(*words: str, **environment: str) -> str:
    argv = [sys.executable, *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment or None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_installed_packages_have_all_required_names():
    assert found("-c", ALL) == ""
    assert found("-m", torch_internals.__name__) == "nothing is missing"


@pytest.mark.thorough  # pip may install newer versions than any tested before
def test_the_newest_releases_have_all_required_names(tmp_path: Path):
    wanted = ["ipyparallel", "ipykernel", "jupyter_client", "jupyter_core", "traitlets", "ipython"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", tmp_path]
    subprocess.run([*pip, *wanted], check=True)
    path = f"{tmp_path}:{':'.join(sys.path)}"
    assert found("-c", ALL, PYTHONPATH=path) == ""


class Less:
    """A module that lacks some of its names."""

    def __init__(self, name: str, **has: Any) -> None:
        self.__name__ = name
        self.__dict__.update(has)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(recorder, "note", said.append)
    return said


def test_missing_pytorch_internals_disable_features_with_a_note(notes: list[str]):
    world = object()
    c10d = Less(torch_internals.C10D, GroupMember=SimpleNamespace(WORLD=world))
    assert torch_internals.group_names(c10d) == {}
    assert torch_internals.is_present(c10d, world) and not torch_internals.is_present(c10d, None)
    assert torch_internals.resolved(c10d, "0") is world
    assert torch_internals.collectives_so_far(c10d, world) == 0
    assert torch_internals.backends(c10d, world) == {}
    torch_internals.abort(c10d)
    torch_internals.patch(c10d, "_new_process_group_helper", lambda original: 1 / 0)
    assert not hasattr(c10d, "_new_process_group_helper")
    assert any(
        "_new_process_group_helper: a collective of Gloo is not released" in n for n in notes
    )
    assert all(note.startswith("this PyTorch (") for note in notes)


def test_a_pytorch_internal_that_exists_is_wrapped(notes: list[str]):
    ddp = Less(torch_internals.DDP_MODULE, DistributedDataParallel=SimpleNamespace(_pre_forward=2))
    torch_internals.patch(ddp, "DistributedDataParallel._pre_forward", lambda it: it * 21)
    assert ddp.DistributedDataParallel._pre_forward == 42 and notes == []
