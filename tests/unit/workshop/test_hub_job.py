"""The job script of a learner's server under JupyterHub, run by a shell without Slurm."""

from __future__ import annotations

import asyncio
import os
import pwd
import runpy
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from checkout import ROOT
from rankroom.errors import UsageError
from rankroom.scheduler.site import Environment, Site
from rankroom.workshop import hub_job
from rankroom.workshop.workshop_plan import Plan

HERE = Site("here", environment=Environment(python=sys.executable, preload="torch"))
# Runs in place of JupyterHub's command, and prints what that would find in its environment.
TELL = 'sh -c \'echo "$JUPYTERHUB_SERVICE_URL"; ls -ld "$JUPYTER_RUNTIME_DIR"; exit {status}\''


def start(home: Path) -> subprocess.Popen[str]:
    """Start a shell that runs the script on its input, as Slurm would on a node."""
    (home / "workshop-7.log").touch()
    given = {
        "HOME": str(home), "SLURM_JOB_ID": "7", "PATH": os.environ["PATH"],
        "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:0/user/ada/",
        "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    }  # fmt: skip
    return subprocess.Popen(
        ["bash", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=given, cwd=home, text=True,
    )  # fmt: skip


def run(home: Path, command: str) -> tuple[int, str]:
    """Run the job script with this command; return its exit status and its output."""
    with start(home) as shell:
        said, _ = shell.communicate(hub_job.script(HERE, str(home), command), timeout=60)
    return shell.returncode, said


def test_the_job_script_requests_the_resources_of_the_plan():
    plan = Plan(name="w", folder="/w", site="there", reservation="course", ranks=2, gpus=2,
                cpus=4, memory="16G", time="03:00:00", partition="gpu")  # fmt: skip
    script = hub_job.script(plan.of_site(), "/home/ada lovelace", "jupyterhub-singleuser")
    head = [line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line]
    assert {
        "reservation=course", "ntasks-per-node=2", "gpus-per-node=2", "cpus-per-task=4", "mem=16G",
        "time=03:00:00", "partition=gpu", "nodes=1", "chdir='/home/ada lovelace'",
    } <= {*head}  # fmt: skip
    assert "preload" not in script.lower()
    assert "RANKROOM_PRELOAD=torch" in hub_job.script(HERE, "/home/ada", "true")


def test_a_plan_cannot_add_lines_to_the_job_script():
    with pytest.raises(UsageError, match="reservation must be a single word"):
        Plan(name="w", folder="/w", reservation="x\n#SBATCH --uid=0").of_site()


def test_the_server_listens_on_one_address_and_its_folder_is_private(tmp_path: Path):
    status, said = run(tmp_path, TELL.format(status=0))
    url, folder = said.splitlines()
    assert status == 0 and url == "http://127.0.0.1:0/user/ada/"
    assert folder.startswith("drwx------") and not Path(folder.split()[-1]).exists()
    assert not (tmp_path / "workshop-7.log").exists()


def test_a_server_that_fails_keeps_its_log(tmp_path: Path):
    status, said = run(tmp_path, TELL.format(status=3))
    assert status == 3 and not Path(said.split()[-1]).exists()
    # The home may be open to other users.
    assert (tmp_path / "workshop-7.log").stat().st_mode & 0o777 == 0o600


def test_the_end_of_the_job_ends_the_server(tmp_path: Path):
    mark = tmp_path / "started"
    command = f"sh -c 'echo $$ > {mark}; exec sleep 600'"
    with start(tmp_path) as shell:
        assert shell.stdin is not None
        shell.stdin.write(hub_job.script(HERE, str(tmp_path), command))
        shell.stdin.close()
        until = time.monotonic() + 60
        while not mark.exists() or not mark.read_text().strip():
            assert time.monotonic() < until
            time.sleep(0.02)
        server = int(mark.read_text())
        shell.send_signal(signal.SIGTERM)
        shell.wait(30)
    assert not (tmp_path / "workshop-7.log").exists()  # it was ended, it did not fail
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def spawner(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the spawner class of the hub's configuration, with a fake JupyterHub."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("WORKSHOP_PLAN", str(tmp_path / "plan.toml"))
    for name, known in (
        ("batchspawner", {"SlurmSpawner": object}),
        ("batchspawner.api", {"BatchSpawnerAPIHandler": object}),
        ("jupyterhub", {"apihandlers": SimpleNamespace(default_handlers=[])}),
    ):
        module = ModuleType(name)
        vars(module).update(known)
        monkeypatch.setitem(sys.modules, name, module)
    file = ROOT / "slurm" / "workshop" / "jupyterhub_config.py"
    return runpy.run_path(str(file), {"get_config": MagicMock()})["WorkshopSpawner"]


def test_the_hub_admits_learners_and_uses_the_reservation_an_hour_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    starts = datetime.now(timezone.utc) + timedelta(hours=2)
    plan = Plan(name="w", folder=str(tmp_path), way="hub", hub="https://hub.site", site="there",
                reservation="course", starts=starts)  # fmt: skip
    one = spawner(plan, tmp_path, monkeypatch)()
    one.cmd_formatted_for_batch = lambda: "jupyterhub-singleuser"

    def job(user: str) -> str:
        one.user = SimpleNamespace(name=user)
        script: str = asyncio.run(one._get_batch_script())
        return script

    with pytest.raises(UsageError, match="seats can be taken from an hour before"):
        job("nobody")
    assert "--reservation" not in job(pwd.getpwuid(os.getuid()).pw_name)  # the teacher
    soon = starts.timestamp() - 3000
    monkeypatch.setattr(time, "time", lambda: soon)
    assert "#SBATCH --reservation=course" in job("nobody")
