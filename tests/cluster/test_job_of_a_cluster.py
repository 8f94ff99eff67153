"""The main process of a site's job runs as long as the cluster, and the cluster ends with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankroom.cluster import lookup
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.rpc.client import ask
from rankroom.system.polling import poll_until
from rankroom.system.process_tree import lives

pytestmark = pytest.mark.cluster

# Runs the job's main process, and records each time it opens cluster.json.
NOTING = """
import sys
noted = open(sys.argv[1], "a", buffering=1)
def note(event, args):
    if event == "open" and str(args[0]).endswith("cluster.json"):
        noted.write("opened\\n")
sys.addaudithook(note)
from rankroom.remote import job
raise SystemExit(job.main(sys.argv[2:]))
"""


class Job:
    """The job's main process, its output, and how often it has opened cluster.json."""

    def __init__(self, folder: Path) -> None:
        self._opened, self._said = folder / "opened", folder / "said"
        self._opened.touch()
        words = ["-c", NOTING, str(self._opened), "far", "--ranks", "1", "--folder", str(folder)]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdout=said, stderr=subprocess.STDOUT
            )
        self.paths = ClusterPaths("far")

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def opened(self) -> int:
        return len(self._opened.read_text().splitlines())

    def info(self) -> ClusterInfo:
        info = self.paths.read()
        assert info is not None
        return info

    def end(self) -> int:
        """Wait for the process to end; return its exit status."""
        return self.process.wait(30)


@pytest.fixture
def job(home: Path, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        assert poll_until(lambda: "far: ready" in made.said, 120), made.said
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        lookup.end(made.paths)


def test_the_job_does_not_poll_the_cluster_file(job: Job):
    """If they polled it, forty jobs would open files of a shared file system 200 times a second."""
    before = job.opened
    assert before > 0
    assert not poll_until(lambda: job.process.poll() is not None, 2.0)  # it keeps running
    assert job.opened <= before + 1  # by the thread that repairs records, as it starts
    ask(job.info().rpc, job.info().rpc_key, do="stop")
    assert job.end() == 0
    assert "the cluster is over: it was stopped" in job.said
    assert job.opened <= before + 2


def test_a_killed_supervisor_ends_the_job(job: Job):
    os.kill(job.info().supervisor, signal.SIGKILL)
    assert job.end() == 0
    assert "the cluster is over: its supervisor was killed" in job.said


def test_the_schedulers_warning_is_logged_and_its_sigterm_ends_the_cluster(job: Job):
    info = job.info()
    job.process.send_signal(signal.SIGUSR1)
    assert poll_until(lambda: "the job is about to reach its time limit" in job.said, 10)
    assert lives(info.supervisor, info.began) and job.process.poll() is None
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 0
    assert re.search(r"the job has been asked to end.*ended", job.said, re.S)
    assert not lives(info.supervisor, info.began) and job.paths.read() is None
