"""`bench/gpu.sh` without GPUs: it says so in one line, and `--rehearse` runs on the CPU."""

import os
import re
import subprocess
import sys

import pytest

from checkout import ROOT

pytestmark = pytest.mark.cluster


def gpu(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu.py", *words], capture_output=True, text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment, timeout=500,
    )  # fmt: skip


def test_without_a_gpu_one_line_names_the_rehearsal():
    done = gpu()
    assert done.returncode == 2
    assert re.fullmatch(r"no GPU: .* `bench/gpu.sh --rehearse` runs .*\n", done.stderr)


def test_a_failure_is_in_the_table_and_in_the_exit_status():
    done = gpu("--rehearse", "own", RANKROOM_START_SECONDS="0.01")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^failed +own .*not ready after", done.stdout, re.M), done.stdout
    assert done.stdout.rstrip().endswith("1 failed")


@pytest.mark.thorough
@pytest.mark.parametrize("half", [0, 1])
def test_every_gpu_check_can_be_rehearsed_on_the_cpu(half: int):
    names = [line.split()[0] for line in gpu("--list").stdout.splitlines()]
    mine = names[half::2]
    done = gpu("--rehearse", *mine)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = re.findall(r"^(passed|measured) +(\S+)", done.stdout, re.M)
    assert [name for _, name in ended] == mine, done.stdout
    assert "left behind" not in done.stderr
