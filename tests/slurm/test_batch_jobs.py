"""`rankroom batch` on a real cluster: two nodes, a cell that fails, a job that ends."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from labs import end_lines, make_home, settings
from machines import Machines

PROFILE = """
scratch = "~/scratch"

[job]
nodes = 2
gpus_per_node = 2
time = "00:10:00"

[environment]
python = "{python}"
"""
START = "%load_ext rankroom\n%cluster start --ranks 2 --site elsewhere"
WHERE = """%%distributed
import os, socket
print("here is", rank, flush=True)
socket.gethostname(), size, device"""
FAILING = """%%distributed
print('before', flush=True)
if rank == 3:
    raise ValueError('no data')"""
RECORDS = """
import json
from rankroom.cluster.repair import complete_all
from rankroom.record.store import Store
store = Store()
complete_all(store)
print(json.dumps([
    [run.state, run.failure and run.failure.evalue,
     [event["text"] for event in store.events(run.id) if event["kind"] == "log"]]
    for run in reversed(store.newest())
]))
"""


def notebook_of(*cells: str) -> str:
    made = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [
            {"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": source,
             "outputs": [], "execution_count": None}
            for number, source in enumerate(cells)
        ],
    }  # fmt: skip
    return json.dumps(made)


class Alice:
    """A user who submits notebooks as batch jobs on the login node; each test has its own home."""

    def __init__(self, machines: Machines, name: str) -> None:
        self.machines = machines
        self.folder = machines.home("alice") / name
        self.there = f"/home/alice/{name}"
        self.own = ["env", f"RANKROOM_HOME={self.there}/home", f"XDG_CONFIG_HOME={self.there}"]
        self.put(".keep", "")
        profile = PROFILE.format(python=sys.executable)
        self.put("rankroom/sites/test.toml", profile.replace("~", self.there))

    def put(self, name: str, text: str) -> None:
        self.machines.run("login", ["mkdir", "-p", f"{self.there}/{Path(name).parent}"], "alice")
        home = self.machines.home("alice")
        self.machines.put("alice", str((self.folder / name).relative_to(home)), text)

    def notebook(self, *cells: str) -> str:
        """Write a notebook; return its path on the machines."""
        self.put("train.ipynb", notebook_of(*cells))
        return f"{self.there}/train.ipynb"

    def rankroom(self, *words: str, seconds: float = 240) -> str:
        python = [*self.own, sys.executable, "-m", "rankroom"]
        return self.machines.run("login", [*python, *words], "alice", seconds)

    def batch(self, notebook: str, *words: str) -> str:
        return self.rankroom("batch", notebook, "--site", "test", *words)

    def records(self) -> list[Any]:
        words = [*self.own, sys.executable, "-c", RECORDS]
        return json.loads(self.machines.run("login", words, "alice").splitlines()[-1])

    def executed(self) -> dict[str, Any]:
        """The executed notebook."""
        [file] = self.folder.glob("train-*.ipynb")
        return json.loads(file.read_text())

    def state(self, job: str) -> str:
        said = self.machines.run("login", ["scontrol", "show", "job", "-o", job], "alice")
        return said.partition("JobState=")[2].split()[0]

    def until(self, holds: Any, seconds: float = 120) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return found

    def until_nothing_runs(self) -> None:
        nodes = self.machines.nodes
        self.until(lambda: not any(self.machines.processes(each, "alice") for each in nodes))


@pytest.fixture
def alice(machines: Machines, request: pytest.FixtureRequest):
    made = Alice(machines, request.node.name)
    yield made
    machines.run("login", ["scancel", "--user=alice"])
    made.until_nothing_runs()


def submitted(said: str) -> str:
    return said.split("job ")[1].split()[0]


@pytest.mark.thorough
def test_a_notebook_runs_on_the_ranks_of_its_job(alice: Alice):
    said = alice.batch(alice.notebook(START, "x = 3", WHERE, "x + 1"), "--wait")
    assert "all 4 cells have run" in said, said
    start, _, where, last = alice.executed()["cells"]
    # The ranks use the job's own nodes, although the notebook names another site.
    assert start["source"][-1] == "%cluster start"
    shown = "".join(where["outputs"][0]["data"]["text/plain"])
    assert "4 ranks" in shown
    for node in ("c1", "c2"):
        assert f"('{node}', 4, 'cuda:0')" in shown
    assert last["outputs"][0]["data"]["text/plain"] == ["4"]
    [[state, failure, lines]] = alice.records()
    assert (state, failure) == ("done", None)
    assert sorted(lines) == [f"here is {rank}\n" for rank in range(4)]
    assert alice.state(submitted(said)) == "COMPLETED"


@pytest.mark.thorough
def test_the_first_cell_that_fails_ends_the_job(alice: Alice):
    notebook = alice.notebook(START, FAILING, "open('never', 'w')")
    said = alice.batch(notebook, "--wait", "--nodes", "2")
    assert "cell 2 of 3 failed" in said, said
    assert "rank 3 failed first (cell line 3): ValueError: no data" in said
    assert not (alice.folder / "never").exists()
    [[state, failure, lines]] = alice.records()
    assert (state, failure) == ("failed", "no data")
    assert lines == ["before\n"] * 4
    assert alice.executed()["cells"][1]["outputs"][-1]["output_type"] == "error"
    assert alice.executed()["cells"][2]["outputs"] == []
    assert alice.state(submitted(said)) == "FAILED"
    assert f"{submitted(said)} " in alice.rankroom("jobs", "--all")


def running_cell(alice: Alice, number: int) -> None:
    """Wait until the job runs this cell and each of its four ranks has begun it."""

    def runs() -> bool:
        states = list(alice.folder.glob("scratch/batch/*/state.json"))
        return bool(states) and json.loads(states[0].read_text())["cell"] == number

    alice.until(runs)
    begun = {f"begun {rank}\n" for rank in range(4)}
    alice.until(lambda: any(begun <= set(each[2]) for each in alice.records()))


LONG = "%%distributed\nimport time\nprint('begun', rank, flush=True)\ntime.sleep(1000)"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (["scancel"], "was cancelled"),
        pytest.param(["scontrol", "update", "EndTime=now+5"], "is over",
                     marks=pytest.mark.thorough),  # Slurm checks the time every 30 s
    ],
)  # fmt: skip
def test_a_job_ended_during_a_cell_records_the_reason_and_keeps_all_output(
    alice: Alice, end: list[str], words: str
):
    said = alice.batch(alice.notebook(START, LONG, "1"))
    job = submitted(said)
    running_cell(alice, 2)
    alice.machines.run("login", [*end, job if end == ["scancel"] else f"JobId={job}"], "alice")
    alice.until(lambda: alice.state(job) in ("CANCELLED", "TIMEOUT"))
    alice.until_nothing_runs()
    [state] = alice.folder.glob("scratch/batch/*/state.json")
    progress = json.loads(state.read_text())
    assert progress["state"] == "failed"
    assert words in progress["why"], progress
    assert ": in cell 2 of 3, import time" in progress["why"]
    # If the job had no time to complete the record, `records` does, a minute after the last write.
    alice.until(lambda: alice.records()[0][0] != "running")
    [[ended, failure, lines]] = alice.records()
    assert ended == "failed"
    assert words in failure, failure
    assert sorted(lines) == [f"begun {rank}\n" for rank in range(4)]
    assert words in alice.rankroom("batch", "--collect", job)


def test_a_dry_run_shows_the_job_script_and_the_notebook_and_submits_nothing(alice: Alice):
    said = alice.batch(alice.notebook(START, "1 + 1"), "--dry-run", "--time", "00:20:00")
    assert "#SBATCH --time=00:20:00" in said
    assert "rankroom.batch.runner" in said
    assert "# In the notebook: %cluster start --ranks 2 --site elsewhere\n%cluster start\n" in said
    assert alice.machines.queue("login", ["squeue", "-h", "--me"], "alice") == ""


def test_a_notebook_submitted_from_a_laptop_returns_with_its_records(
    machines: Machines, alice: Alice
):
    profile = PROFILE.format(python=sys.executable).replace("~", alice.there)
    home = make_home(
        machines, machines.root / "home-batch", "root", there=f'login = "login"{profile}'
    )
    notebook = home / "my notebook.ipynb"
    notebook.write_text(notebook_of(START, WHERE, "import os; os.getcwd()"))
    python = ["env", *settings(home), sys.executable, "-m", "rankroom"]
    try:
        said = machines.run(
            "laptop", [*python, "batch", notebook, "--site", "there", "--wait"], timeout=240
        )
        assert "all 3 cells have run" in said, said
        assert "1 record was brought here" in said
        [copy] = home.glob("my-notebook-*.ipynb")
        where, cwd = json.loads(copy.read_text())["cells"][1:]
        assert "('c2', 4, 'cuda:1')" in "".join(where["outputs"][0]["data"]["text/plain"])
        # The laptop's folder does not exist on the site, so the cells run in the job's own.
        assert copy.stem in cwd["outputs"][0]["data"]["text/plain"][0]
        shown = machines.run("laptop", [*python, "runs", "show", "last"])
        assert "here is 3" in shown, shown
        # A second collection adds nothing.
        job = submitted(said)
        again = machines.run(
            "laptop", [*python, "batch", "--collect", job, "-o", home / "again.ipynb"]
        )
        assert "0 records were brought here" in again, again
        assert (home / "again.ipynb").read_text() == copy.read_text()
    finally:
        end_lines(machines, home)


TOGETHER = """%%distributed
import torch
import horovod.torch as hvd
hvd.init()
print('begun', rank, flush=True)
while True:
    hvd.allreduce(torch.ones(1))"""


@pytest.mark.thorough  # Slurm takes a while to report the node idle again
def test_a_node_that_fails_is_named_and_the_cell_with_it(machines: Machines, alice: Alice):
    job = submitted(alice.batch(alice.notebook(START, TOGETHER, "1")))
    running_cell(alice, 2)
    begun = {f"begun {rank}\n" for rank in range(4)}
    machines.crash("c2")
    try:
        [state] = alice.folder.glob("scratch/batch/*/state.json")
        alice.until(lambda: json.loads(state.read_text())["state"] != "running")
        progress = json.loads(state.read_text())
        assert "cell 2 of 3 failed, import torch: RunFailed: rank" in progress["why"], progress
        assert "c2" in progress["why"]
        alice.until(lambda: alice.state(job) in ("FAILED", "NODE_FAIL"))
        [[ended, failure, lines]] = alice.records()
        assert ended == "failed"
        assert "c2" in failure
        assert begun <= set(lines)  # Horovod may add lines of its own
        # The job ran once: Slurm did not requeue it on other nodes.
        assert alice.machines.queue("login", ["squeue", "-h", "--me"], "alice") == ""
        assert len(alice.records()) == 1
    finally:
        machines.boot("c2")
        machines.until_idle()
