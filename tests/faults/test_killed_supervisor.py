"""A supervisor is killed at each step of a run.

The repaired record has everything that ranks printed, and no process or folder is left.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from numbered import assert_numbered, written
from rankroom.analysis.profile.of_run import profile_of
from rankroom.cluster.launch import own_processes
from rankroom.cluster.local import Cluster
from rankroom.cluster.repair import complete_all
from rankroom.errors import NoClusterError
from rankroom.record.cluster_file import clusters_folder
from rankroom.record.store import Store
from rankroom.system.polling import poll_until

pytestmark = pytest.mark.cluster

KILLED_AT = Path(__file__).parents[1] / "support" / "killed_at"
RANKS, RECORDER = "rankroom.supervisor.rank_connections:", "rankroom.supervisor.recorder:"
STORE, RUNS = "rankroom.record.store:", "rankroom.supervisor.runs:"
# Endless where the supervisor is killed during the run; the span gives it a profile.
SOURCE = """
import time
from rankroom import span
i = 0
while i < {lines}:
    print("line", i)
    i += 1
    time.sleep(0.002)
with span("a step"):
    time.sleep(0.01)
"""
WRITER = "rankroom.record.patient_writer:PatientWriter."
CLEAR = "rankroom.supervisor.assembly:Assembly.clear"
PROFILE = "rankroom.analysis.profile.of_run:write_profile"
# Where the supervisor is killed, and the states that the repaired record may have. It is repaired
# from the ranks' spools, so as long as no rank has the cell, the run stays lost.
STEPS = {
    "submitted": (f"before {STORE}Store.create 1", ()),
    "its record is made": (f"after {STORE}Store.create 1", ("lost",)),
    "the cell is sent to one of two": (f"before {RANKS}RankConnections._ask 2", ("lost", "failed")),
    "the cell is sent": (f"after {RANKS}RankConnections.execute 1", ("lost", "failed")),
    "who asked is to be told": (f"before {RUNS}Runs._answer 1", ("failed",)),
    "the first lines come": (f"before {RECORDER}Recorder._take 1", ("failed",)),
    "lines are written": (f"after {WRITER}append 5", ("failed",)),
    "a rank has ended": (f"before {RECORDER}Recorder._status 3", ("done", "failed")),
    "all ranks have ended": (f"before {RECORDER}Recorder._finish 1", ("done",)),
    "its end is to be written": (f"before {WRITER}finish 1", ("done",)),
    "its end is written": (f"after {WRITER}finish 1", ("done",)),
    "ranks' copies are removed": (f"after {CLEAR} 1", ("done",)),
    "its profile is to be written": (f"before {PROFILE} 1", ("done",)),
    "its profile is written": (f"after {PROFILE} 1", ("done",)),
    "who asked is to be told of the end": (f"before {RUNS}Runs._note_end 1", ("done",)),
}
OFTEN = ("its record is made", "lines are written", "its end is to be written")


# Not `racy`: it is killed at a certain statement, so there is no need to repeat the test.
@pytest.mark.fault(
    "the supervisor is killed when {id}", "all that was printed is there, and nothing else"
)
@pytest.mark.parametrize(
    ("at", "states"),
    [
        pytest.param(*where, id=name, marks=[] if name in OFTEN else pytest.mark.thorough)
        for name, where in STEPS.items()
    ],
)
def test_killed_when(home: Path, monkeypatch: pytest.MonkeyPatch, at: str, states: tuple[str, ...]):
    monkeypatch.setenv("PYTHONPATH", f"{KILLED_AT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("KILLED_AT", at)
    cluster = Cluster.local(ranks=2, name="killed")
    monkeypatch.delenv("KILLED_AT")
    try:
        with contextlib.suppress(NoClusterError):
            run = cluster.run(SOURCE.format(lines=200 if "done" in states else "1e9"))
            assert run.wait(60)
        assert poll_until(lambda: own_processes(cluster.paths) == [], 60)
        printed = {rank: (cluster.paths.spool(rank) / "stdout").read_text() for rank in (0, 1)}
        with pytest.raises(NoClusterError, match="its supervisor was killed"):
            cluster.run("1")
    except BaseException:
        cluster.stop()
        raise
    cluster.close()
    store = Store()
    complete_all(store)
    assert_all_is_there(store, printed, states)
    assert cluster.paths.unfinished() == []
    # The name can be used again, and the old cluster's files are removed.
    again = Cluster.local(ranks=1, name="killed")
    try:
        assert poll_until(
            lambda: [each.name for each in clusters_folder().iterdir()] == ["killed"], 10
        )
    finally:
        again.stop()
    assert list(clusters_folder().iterdir()) == []


def assert_all_is_there(store: Store, printed: dict[int, str], states: tuple[str, ...]) -> None:
    found = store.newest()
    assert len(found) == bool(states), found
    for run in found:
        assert run.state in states, run
        for rank, text in printed.items():
            assert_numbered(store, run.id, rank)
            assert written(store, run.id, rank) == text
        # The profile is stored, or can be computed from the events.
        assert profile_of(store, run).to_json()
