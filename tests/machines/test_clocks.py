"""The clock is set an hour ahead or back while ranks train: nothing ends, and nothing is lost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from numbered import assert_numbered
from odd_machine import Machine, Odd
from rankroom.record.store import Store

pytestmark = pytest.mark.cluster

TRAINS = """
import json, rankroom
cluster = rankroom.Cluster.attach("mine")
run = cluster.run('''
import pathlib, time
import torch
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
count, over = 0, torch.tensor([0])
while not over.item():
    over = torch.tensor([int(pathlib.Path({gate!r}).exists())])
    dist.all_reduce(over)
    print("line", count)
    count += 1
    time.sleep(0.005)
count
''')
print(run.id, flush=True)
run.wait(120)
print(json.dumps([run.state, run.results]))
"""


@pytest.fixture(scope="module")
def set_up(
    tmp_path_factory: pytest.TempPathFactory, odd_library: Path
) -> Iterator[tuple[Machine, Odd, Path]]:
    """A machine with two ranks, whose clock can be set, and its home."""
    folder = tmp_path_factory.mktemp("clocks")
    odd = Odd(odd_library, folder / "is-odd")
    about = {"RANKROOM_HOME": str(folder / "home")}
    made = Machine("there", folder, environment=odd.environment | about)
    try:
        made.rankroom("cluster", "start", "--ranks", "2", "--name", "mine")
        yield made, odd, folder / "home"
    finally:
        made.crash()


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_run_survives_a_change_of_the_clock(set_up: tuple[Machine, Odd, Path], seconds: int):
    there, odd, home = set_up
    gate, store = home.parent / f"gate{seconds}", Store(home)
    begun = time.monotonic()
    client = there.start(sys.executable, "-c", TRAINS.format(gate=str(gate)))
    assert client.stdout
    run_id = client.stdout.readline().strip()
    while not any(event["kind"] == "log" for event in store.events(run_id)):
        assert time.monotonic() < begun + 60
        time.sleep(0.1)
    odd.clock_ahead(seconds)
    listed, cleaned, runs, repaired = there.each(
        "cluster list", "doctor --clean", "runs list -n 1", "runs repair"
    )
    assert "2 ranks ready" in listed[1]
    assert "up since" in cleaned[1] and "nothing was left behind" in cleaned[1]
    assert "running" in runs[1]
    assert repaired[1] == "no record can be completed\n"
    time.sleep(1.5)
    gate.touch()
    said = client.communicate(timeout=120)[0]
    state, results = json.loads(said.splitlines()[-1])
    took = time.monotonic() - begun
    odd.end()
    run = store.load(run_id)
    assert (state, run.state, run.failure, run.hang) == ("done", "done", None, None)
    for rank, count in results.items():
        assert_numbered(store, run_id, int(rank), int(count))
    assert run.end is not None and 0 < (run.end - run.start) / 1e6 < took
    [note] = run.notes
    assert note.startswith(f"the system clock was changed by {seconds:+d} s")
    # With the clock restored, a new process still sees the cluster.
    assert "2 ranks ready" in there.rankroom("cluster", "list")
