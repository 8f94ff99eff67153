"""`%cluster restart` of ranks in a site's job; PBS is simulated, and the job runs here."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cells import values
from fake_scheduler import FakeScheduler
from rankroom.cli import main
from rankroom.notebook import cluster_magic
from rankroom.remote.cluster import RemoteCluster
from rankroom.scheduler.site import Environment, Job, Site

pytestmark = pytest.mark.cluster

HERE = socket.gethostname().partition(".")[0]
ABOUT = {
    "Job_Name": "far-job", "job_state": "R", "stime": "Fri Nov 20 12:00:00 2026",
    "Resource_List": {"walltime": "01:00:00"}, "exec_vnode": f"({HERE}:ncpus=4)",
}  # fmt: skip
# A qsub that runs the script at once, as job 101.
QSUB = """
cat >"$FAKE_SCHEDULER/scripts/101"
cat >"$FAKE_SCHEDULER/jobs/101" <<'END'
{about}
END
printf '{here}\\n{here}\\n' >"$FAKE_SCHEDULER/nodes"
PBS_JOBID=101.pbs-01 PBS_NODEFILE="$FAKE_SCHEDULER/nodes" PBS_O_WORKDIR=/ \\
  setsid bash "$FAKE_SCHEDULER/scripts/101" >"$FAKE_SCHEDULER/output" 2>&1 </dev/null &
echo 101.pbs-01.example.org
"""


@pytest.fixture
def far(fake: FakeScheduler, tmp_path: Path) -> Iterator[RemoteCluster]:
    """Two ranks in a job of a site whose login node is this machine."""
    fake.instead("qsub", QSUB.format(about=json.dumps(ABOUT)[1:-1], here=HERE))
    python = Environment(python=sys.executable)
    scratch = str(tmp_path / "scratch")
    site = Site("hpc", scheduler="pbs", scratch=scratch, environment=python, job=Job())
    made = RemoteCluster.start(site, "far")
    try:
        made.until_ready()
        made.make_current()
        yield made
    finally:
        made.stop()


def test_all_ranks_are_restarted_in_the_job_that_they_have(
    far: RemoteCluster, fake: FakeScheduler, capsys: pytest.CaptureFixture[str]
):
    assert values(far, "kept = rank") == []
    before = [rank.pid for rank in far.ranks]
    cluster_magic.restart("")
    said = capsys.readouterr().out
    assert said.startswith("ranks 0–1 restarted in ")
    assert "in the same job (101)" in said
    assert "for a new job, `%cluster stop` and then `%cluster start --site hpc`" in said
    assert values(far, "'kept' in globals()") == [False, False]
    assert not {*before} & {rank.pid for rank in far.ranks}
    done = CliRunner().invoke(main, ["cluster", "restart", "far"])
    assert done.exit_code == 0, done.output
    assert "ranks 0–1 of far restarted" in done.output
    assert far.alive == [0, 1]
    assert len(fake.calls("qsub")) == 1 and fake.calls("qdel") == []
