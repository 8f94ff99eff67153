"""Strategies of tf.distribute on real ranks: those that train alone, and failures of cells."""

from __future__ import annotations

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster

STRATEGY = """
import time, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def total():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(1)))
"""
TOTAL = "float(total()[0])"
GIVEN_UP = "tf.distribute's collectives were aborted"


@pytest.mark.parametrize("name", ["MirroredStrategy", "experimental.CentralStorageStrategy"])
def test_a_note_says_that_a_single_process_strategy_trains_alone(frameworks: Cluster, name: str):
    source = f"import tensorflow as tf\nfor _ in range(2): tf.distribute.{name}()"
    [note] = finish(frameworks, source).info.notes
    assert "each rank trains its own model" in note and "MultiWorkerMirroredStrategy" in note
    assert note.startswith(name.rpartition(".")[2])
    assert finish(frameworks, source, ranks=[1]).info.notes == [], "one rank is alone anyway"
    # A strategy for CPUs only is a deliberate trial, as in the course: it needs no note.
    tried = finish(frameworks, source.replace("()", "(['CPU:0'])"))
    assert (tried.state, tried.info.notes) == ("done", []), failure(tried)


def test_creating_a_strategy_too_late_fails_with_a_remedy(frameworks: Cluster):
    run = finish(frameworks, f"import tensorflow as tf\ntf.ones(1)\n{STRATEGY}")
    assert run.state == "failed"
    said = "Collective ops must be configured at program startup. Ranks keep TensorFlow's state"
    assert said in failure(run) and "`%cluster restart`" in failure(run)


def test_a_strategy_without_tf_config_notes_that_it_found_no_other_worker(frameworks: Cluster):
    source = f"""
    import os
    kept = os.environ.pop("TF_CONFIG")
    try:
        exec({STRATEGY!r})
    finally:
        os.environ["TF_CONFIG"] = kept
    """
    [note] = finish(frameworks, source).info.notes
    assert "found no other worker" in note and "`%cluster restart`" in note


def test_a_rank_creating_a_strategy_is_released_when_another_rank_fails(cluster: Cluster):
    run = finish(cluster, f"if rank == 0: raise ValueError('mine')\n{STRATEGY}")
    assert states(run) == {0: "error", 1: "released"}
    assert values(cluster, STRATEGY + TOTAL) == [2.0, 2.0], "and can make it in the next cell"


@pytest.mark.parametrize("before", ["", "for _ in range(3): total()"], ids=["none", "some"])
def test_an_error_outside_of_collectives_keeps_the_strategy_usable(cluster: Cluster, before: str):
    run = finish(cluster, f"{before}\ntime.sleep(rank)\nundefined")
    assert states(run) == {0: "error", 1: "error"} and "NameError" in failure(run)
    again = finish(cluster, TOTAL)
    assert again.results == {0: "2.0", 1: "2.0"}, failure(again)
    assert GIVEN_UP not in log(again, 0, "stderr")


def test_a_collective_after_another_rank_has_failed_is_not_begun(cluster: Cluster):
    run = finish(cluster, f"if rank == 0: raise ValueError('mine')\ntime.sleep(1)\n{TOTAL}")
    assert states(run) == {0: "error", 1: "released"}
    assert values(cluster, TOTAL) == [2.0, 2.0]


def test_a_collective_that_is_refused_leaves_the_ranks_in_step(cluster: Cluster):
    run = finish(cluster, TOTAL, ranks=[0])
    assert "SubsetError" in failure(run) and "would wait forever for rank 1" in failure(run)
    assert values(cluster, TOTAL) == [2.0, 2.0]


def test_waiting_ranks_are_released_and_the_abort_is_reported_once(cluster: Cluster):
    run = finish(
        cluster, f"if rank == 0:\n    time.sleep(1)\n    raise ValueError('mine')\n{TOTAL}"
    )
    assert states(run) == {0: "error", 1: "released"}
    told, failed, after = (finish(cluster, source) for source in ("rank", TOTAL, "rank"))
    for rank in (0, 1):
        assert GIVEN_UP in log(told, rank, "stderr")
        assert GIVEN_UP not in log(after, rank, "stderr")
    # No collective was aborted on rank 0, but it must fail as well: it would wait for rank 1.
    assert states(failed) == {0: "error", 1: "error"} and GIVEN_UP in failure(failed)
