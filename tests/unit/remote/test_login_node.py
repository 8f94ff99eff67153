"""The commands for a site's login node, with this machine in its place."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from pathlib import Path

import pytest

from fake_scheduler import FakeScheduler
from rankroom.record.cluster_file import Allocation, ClusterInfo, ClusterPaths, Node, Remote
from rankroom.record.model import Json
from rankroom.record.store import Store
from rankroom.remote import login_node
from rankroom.remote.login_node import LoginNode
from rankroom.remote.queue import Queue
from rankroom.scheduler import jobs
from rankroom.scheduler.site import Site
from rankroom.ssh.host import LocalHost
from record_makers import finished_record, log, start_record

KEPT = 4 << 20  # bytes of a command's output that are kept by default


def a_cluster(job: str = "") -> ClusterPaths:
    """Create the folder of the cluster `far`, in this job."""
    paths = ClusterPaths("far")
    paths.make(1)
    granted = Allocation(job, (Node("c1", 1),)) if job else None
    paths.write(ClusterInfo("far", 1, "running", allocation=granted))
    return paths


@pytest.mark.parametrize("granted", ["12", "12.pbs-01"])
def test_a_cluster_that_is_over_leaves_nothing(home: Path, granted: str):
    paths = a_cluster(granted)
    login_node.clear("far", "12", "", "2")
    assert not paths.folder.exists()


def test_clear_removes_a_folder_without_a_job_or_without_a_cluster_file(home: Path):
    paths = a_cluster()
    login_node.clear("far", "", "", "2")
    assert not paths.folder.exists()
    paths.make(1)
    login_node.clear("far", "12", "", "2")
    assert not paths.folder.exists()


def test_a_cluster_of_the_same_name_in_another_job_is_left_alone(home: Path):
    """It was started from another computer; the one to clear has only waited in the queue."""
    paths = a_cluster("13")
    for job in ("12", ""):
        login_node.clear("far", job, "", "2")
        assert paths.read() is not None


def test_a_cluster_that_runs_here_by_the_same_name_is_left_alone(home: Path, monkeypatch):
    paths = a_cluster()
    monkeypatch.setattr("rankroom.cluster.liveness.alive", lambda info: True)
    login_node.clear("far", "12", "", "2")
    assert paths.read() is not None


@pytest.mark.parametrize(
    ("scheduler", "name"), [("slurm", "far-{}.log"), ("pbs", "{}.pbs-01.example.org.OU")]
)
def test_the_output_of_a_job_is_where_its_scheduler_puts_it(
    fake: FakeScheduler, tmp_path: Path, scheduler: str, name: str
):
    site = Site("test", scheduler=scheduler, scratch=str(tmp_path / "scratch"))  # type: ignore[arg-type]
    remote = Remote("test")

    async def submit() -> None:
        queue = Queue(site, LocalHost(), remote, lambda state, words: None)
        await queue.submit("far", "login", "", False)

    asyncio.run(submit())
    assert login_node.log(remote.log) == {"text": ""}
    folder = tmp_path / "scratch" / "clusters"
    own, another = (folder / name.format(job) for job in (remote.job, f"1{remote.job}"))
    for file in (own, another):
        file.write_text(f"said in {file.name}\n")
    assert login_node.log(remote.log) == {"text": f"said in {own.name}"}
    login_node.clear("far", remote.job, remote.log, "2")
    assert not own.exists() and another.exists()


def test_a_damaged_record_does_not_affect_the_others(home: Path):
    _, one = finished_record(home, log(0, "x\n"), cluster="far")
    _, other = finished_record(home, log(0, "x\n"), cluster="far")
    Store().paths(one.id).run.write_text("{")
    size = Store().paths(other.id).events.stat().st_size
    told = login_node.finish("far", "2")
    assert told == {"runs": [{"id": other.id, "size": size}], "trouble": ""}


def test_a_record_that_cannot_be_completed_does_not_affect_the_others(home: Path, monkeypatch):
    _, one = finished_record(home, log(0, "x\n"), cluster="far")

    def refuse(store: Store) -> None:
        raise OSError(5, "Input/output error", "events.jsonl")

    monkeypatch.setattr("rankroom.cluster.repair.complete_all", refuse)
    told = login_node.finish("far", "2")
    assert [each["id"] for each in told["runs"]] == [one.id]
    assert "Input/output error" in told["trouble"]


def test_a_record_that_ends_during_a_read_is_reported_done_with_its_last_event(
    home: Path, monkeypatch
):
    _, run, writer = start_record(home)
    read = login_node._piece

    def read_and_end(*about: object) -> object:
        """The run ends just after its events were read."""
        found = read(*about)  # type: ignore[arg-type]
        writer.append(log(0, "last\n"))
        run.state, run.end = "done", time.time_ns() // 1000
        writer.finish(run)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(login_node, "_piece", read_and_end)
        told = login_node.events(run.id, "0")
    assert (told["run"]["state"], told["events"]) == ("running", "")
    told = login_node.events(run.id, "0")
    assert told["run"]["state"] == "done" and b"last" in base64.b64decode(told["events"])


def test_an_event_longer_than_an_answer_may_be_is_sent_in_pieces(home: Path):
    lines = log(0, "x" * KEPT) + log(0, "é\n"), b"half a line \xff"
    store, run = finished_record(home, *lines)
    came, is_over = b"", False
    while not is_over:
        told = login_node.events(run.id, str(len(came)))
        assert len(json.dumps(told)) < KEPT / 2
        came += base64.b64decode(told["events"])
        is_over = told["run"]["state"] == "done"
    assert came == store.paths(run.id).events.read_bytes()


def test_a_failed_write_leaves_no_test_file_in_the_cluster_folder(home: Path, monkeypatch):
    """On a full disk, a file is created but stays empty."""

    def refuse(self: Path, text: str) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    paths = a_cluster()
    before = sorted(paths.folder.iterdir())
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(login_node.LoginNode(Site("far"), LocalHost()).meet(paths.folder))
    assert sorted(paths.folder.iterdir()) == before


def test_an_answer_is_found_behind_what_a_login_shell_says(home: Path, capsys):
    """For example a window title, which is printed without a line break."""
    login_node.main(["hello", "far"])
    title = "\x1b]0;login\x07"
    found = [
        *filter(None, map(login_node._answer_in, (title + capsys.readouterr().out).split("\n")))
    ]
    assert len(found) == 1 and found[0]["text"] == "" and abs(found[0]["now"] - time.time()) < 60
    said = subprocess.run(jobs.login_shell(["echo", "7|RUNNING"]), capture_output=True, text=True)
    assert (title + said.stdout).splitlines()[-1] == "7|RUNNING"


@pytest.mark.parametrize("is_same", [True, False])
def test_a_home_is_the_same_wherever_it_is_mounted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
):
    """A home that does not hold the test file is another one."""
    paths = ClusterPaths("far")
    paths.make(0)
    elsewhere = tmp_path / "mounted"
    if is_same:
        elsewhere.symlink_to(home, target_is_directory=True)

    class There(LoginNode):
        async def ask(self, command: str, *words: str, seconds: float = 0.0) -> Json:
            monkeypatch.setenv("RANKROOM_HOME", str(elsewhere))
            try:
                return login_node.COMMANDS[command](*words)
            finally:
                monkeypatch.setenv("RANKROOM_HOME", str(home))

    _, shared, _ = asyncio.run(There(Site("far"), LocalHost()).meet(paths.folder))
    assert shared is is_same
