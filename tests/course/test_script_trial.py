"""How the capstone tries a script: starts it, kills a rank, and counts the images read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom.course.script_trial import ScriptTrial, run_job

pytestmark = pytest.mark.cluster

READS = """
import os
import torch
from rankroom.course.slow_images import SlowImages

images = SlowImages()
rank = int(os.environ["RANK"])
for number in range(40):
    images[range(10 * number, 10 * number + 10)]
if rank == 0:
    torch.save({}, "model.pt")
print("the end")
"""


def test_a_trial_kills_a_rank_and_counts_the_next_run_separately(home: Path, tmp_path: Path):
    trial = ScriptTrial(tmp_path / "trial", READS)
    trial.run(kill=(1, 100))
    assert trial.was_killed and trial.status != 0
    assert 100 <= trial.read_by(1) < 400
    assert "SIGKILL" in trial.output_tail()
    trial.delete_notes()
    trial.run()
    assert trial.status == 0 and not trial.was_killed, trial.output_tail()
    assert [trial.read_by(rank) for rank in (0, 1)] == [400, 400]
    assert trial.saved_by() == {0} and (trial.folder / "model.pt").exists()


def test_a_failed_script_is_reported_with_its_error(home: Path, tmp_path: Path):
    trial = ScriptTrial(tmp_path / "trial", "print(1 / 0)")
    trial.run(kill=(0, 1))
    assert trial.status != 0 and not trial.was_killed
    assert "ZeroDivisionError" in trial.output_tail()


@pytest.mark.thorough
def test_a_job_that_restarts_its_script_endlessly_is_ended(home: Path, tmp_path: Path):
    text = "#!/bin/bash\nwhile ! rankroom run --ranks 1 --preload none train.py; do :; done\n"
    status, started, sizes = run_job(tmp_path, text, failures=99)
    assert status != 0 and started == 4 and sizes == {1}
