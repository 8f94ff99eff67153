"""Site folders that others created or may write to: nothing is written or run there."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rankroom.batch import batch_script
from rankroom.batch.batch_folder import BatchFailed, BatchFolder
from rankroom.batch.batch_job import BatchJob
from rankroom.errors import NotPrivateError
from rankroom.jupyter_job import lab, lab_script
from rankroom.jupyter_job.lab import Lab
from rankroom.jupyter_job.saved_labs import SavedLab
from rankroom.scheduler import own_folder
from rankroom.scheduler.scheduler_client import Scheduler
from rankroom.scheduler.site import Environment, Site
from rankroom.ssh.host import LocalHost

HOSTILE = 'it\'s a "scratch" of $HOME'
AWAY = "planted from elsewhere"


def of_the_group(folder: Path, patch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def theirs(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A folder that is not ours: a fake `id` prints the number of another user."""
    folder.mkdir(parents=True)
    commands = folder.parent.parent / "commands"
    commands.mkdir()
    (commands / "id").write_text(f"#!/bin/sh\necho {os.getuid() + 1}\n")
    (commands / "id").chmod(0o755)
    patch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


def their_link(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Another user's link to a folder of ours."""
    if os.getuid() != 0:
        pytest.skip("only root makes files that belong to others")
    away = folder.parent.parent / AWAY
    folder.parent.mkdir(parents=True, exist_ok=True)
    away.mkdir(mode=0o700)
    folder.symlink_to(away)
    os.chown(folder, 12345, -1, follow_symlinks=False)


Plant = Callable[[Path, pytest.MonkeyPatch], None]
PLANTS = [of_the_group, theirs, their_link]
ALL = pytest.mark.parametrize("plant", PLANTS)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / HOSTILE


def shell(commands: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *commands])],
        cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_an_own_folder_is_created_private_and_reused(fake, tmp_path: Path):
    scheduler = Scheduler(Site("test", scratch=f"{tmp_path}/a b/scratch"), LocalHost())
    made = Path(asyncio.run(scheduler.own_folder("labs")))
    assert made == tmp_path / "a b" / "scratch" / "labs"
    assert made.stat().st_mode & 0o777 == 0o700
    assert asyncio.run(scheduler.own_folder("labs")) == str(made)


@ALL
def test_a_labs_folder_that_others_planted_is_refused(
    fake, tmp_path: Path, monkeypatch, plant: Plant
):
    scratch = tmp_path / "scratch"
    scheduler = Scheduler(Site("test", scratch=str(scratch)), LocalHost())
    plant(scratch / "labs", monkeypatch)
    with pytest.raises(NotPrivateError, match=f"{scratch}/labs on this machine") as refused:
        asyncio.run(lab.folder(scheduler))
    assert "\n" not in str(refused.value)


@ALL
def test_a_batch_job_is_neither_written_nor_read_in_a_folder_that_others_planted(
    tmp_path: Path, monkeypatch, plant: Plant
):
    there = BatchFolder(f"{tmp_path}/scratch/batch/{HOSTILE}")
    sent = BatchJob(LocalHost(), there)
    assert asyncio.run(sent.progress()).state == "waiting"
    plant(Path(there.path), monkeypatch)
    (Path(there.path) / "state.json").write_text('{"state": "done", "home": "/etc"}')
    with pytest.raises(BatchFailed, match="belongs to another user"):
        asyncio.run(sent.progress())
    with pytest.raises(BatchFailed, match="belongs to another user"):
        asyncio.run(sent.put({str(there.script): "x = 1"}))
    assert not (Path(there.path) / "cells.ipy").exists()


@ALL
def test_a_batch_job_runs_nothing_from_a_folder_that_others_planted(
    tmp_path: Path, monkeypatch, plant: Plant
):
    """For example, between its submission and its start."""
    there = BatchFolder(f"{tmp_path}/scratch/{HOSTILE}")
    site = Site("test", environment=Environment(python="/bin/echo"))
    commands = batch_script.commands(site, there, "", "")
    Path(there.path).mkdir(parents=True)
    assert "rankroom.batch.runner ." in shell(commands, tmp_path).stdout
    Path(there.path).rmdir()
    plant(Path(there.path), monkeypatch)
    done = shell(commands, tmp_path)
    assert (done.returncode, done.stdout) == (own_folder.STATUS_REFUSED, "")
    assert "belongs to another user" in done.stderr


PYTHON = """#!/bin/sh
# A Python whose JupyterLab only tells where it is and with what configuration.
case "$2" in
*_run_module_as_main*)
  echo '{"hostname": "h", "port": 1, "token": "abc"}' >"$JUPYTER_RUNTIME_DIR/jpserver-1.json"
  cp "${3#--config=}" "$TOLD/config.py"; pwd >"$TOLD/pwd"; sleep 1 ;;
esac
"""


@pytest.fixture
def plain(tmp_path: Path, scratch: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Run a lab's job commands with a fake Python."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    site = Site("test", login="login", environment=Environment(python=str(python)))
    commands = lab_script.commands(site, str(scratch / "labs"))
    about = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_HOST": "localhost", "TOLD": str(tmp_path)}
    return lambda: shell(commands, tmp_path, USER="me", **about)


def test_a_labs_configuration_is_private_and_removed_at_the_end(plain, tmp_path, scratch):
    done = plain()
    assert done.returncode == 0, done.stderr
    assert "token_urlsafe" in (tmp_path / "config.py").read_text()
    assert (tmp_path / "pwd").read_text().strip() == str(tmp_path)  # where notebooks are
    assert (scratch / "labs").stat().st_mode & 0o777 == 0o700
    assert list((scratch / "labs").iterdir()) == []


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        *((plant, "labs") for plant in PLANTS),
        # Without `theirs`: with its fake `id`, the parent folder would not be ours either.
        *((plant, "labs/7") for plant in PLANTS if plant is not theirs),
    ],
)
def test_a_lab_does_not_start_in_a_folder_that_others_planted(
    plain, tmp_path: Path, scratch: Path, monkeypatch, plant: Plant, name: str
):
    if name == "labs/7":
        (scratch / "labs").mkdir(parents=True, mode=0o700)
    plant(scratch / name, monkeypatch)
    done = plain()
    assert done.returncode == own_folder.STATUS_REFUSED
    assert "belongs to another user" in done.stderr
    assert not (tmp_path / "config.py").exists()


def test_a_lab_in_a_folder_that_others_may_write_to_is_not_opened(fake, tmp_path: Path):
    labs = tmp_path / "labs"
    (labs / "7").mkdir(parents=True)
    (labs / "7" / "server.json").write_text('{"hostname": "h", "port": 1, "token": "abc"}')
    one = Lab(Scheduler(Site("test"), LocalHost()), str(labs), SavedLab("test", "7"))
    opened = asyncio.run(one.endpoint())
    assert opened is not None and opened.token == "abc"
    (labs / "7").chmod(0o777)
    assert asyncio.run(one.endpoint()) is None
    (labs / "lab-7.log").write_text("it broke")
    assert asyncio.run(one.said()) == "it broke"
    asyncio.run(one.clear())
    assert list(labs.iterdir()) == []


def test_the_lab_script_contains_the_shared_folder_check():
    assert own_folder.ENTER_FUNCTION in lab_script.template().read_text()
