"""Processes are found by a mark in their environment, except those of another job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankroom.system import process_tree


@pytest.mark.parametrize(
    ("own", "its", "found"),
    [
        ("", {}, True),
        ("7", {"SLURM_JOB_ID": "7"}, True),
        ("7", {}, True),  # the cell has unset the variable
        ("", {"SLURM_JOB_ID": "999"}, False),  # sbatch in a cell passes on the whole environment
        ("7", {"SLURM_JOB_ID": "999"}, False),
        ("7.pbs", {"PBS_JOBID": "999.pbs"}, False),  # so does `qsub -V`
        (None, {"SLURM_JOB_ID": "999"}, True),  # a forked rank shows its agent's environment
    ],
)
def test_processes_of_a_job_that_a_cell_submitted_are_not_found(
    tmp_path: Path, own: str | None, its: dict[str, str], found: bool
):
    jobs = ("SLURM_JOB_ID", "PBS_JOBID", process_tree.JOB_MARK)
    env = {name: value for name, value in os.environ.items() if name not in jobs}
    env |= {process_tree.SPOOL_MARK: str(tmp_path)} | its
    if own is not None:
        env[process_tree.JOB_MARK] = own
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        marked = process_tree.marked(process_tree.SPOOL_MARK, tmp_path)
        assert [each.pid for each in marked] == [process.pid] * found
        process.communicate(b"\n")
