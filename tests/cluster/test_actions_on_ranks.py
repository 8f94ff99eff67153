"""Actions on a run from outside its kernel, on real ranks: interrupt, release, restart."""

from __future__ import annotations

import time

import pytest

from rankroom.cluster import actions
from rankroom.cluster.local import Cluster
from rankroom.errors import RunOverError
from rankroom.record.store import Store


@pytest.mark.cluster
def test_an_interrupt_from_outside_the_kernel_ends_a_real_run(cluster: Cluster):
    run = cluster.run("print('on the way', flush=True)\nimport time\ntime.sleep(600)")
    store = Store()
    until = time.monotonic() + 60
    # Wait for each rank, as an interrupt ends only a cell that has begun.
    while store.read(run.id).data.count(b"on the way") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    actions.interrupt(actions.running_run(store, run.id).cluster, run.id)
    assert run.wait(60)
    assert {event["ename"] for event in run.events if event["kind"] == "error"} == {
        "KeyboardInterrupt"
    }
    with pytest.raises(RunOverError, match="is over"):
        actions.running_run(store, run.id)


@pytest.mark.cluster
def test_a_run_that_is_over_cannot_be_used_to_end_the_next_one(cluster: Cluster):
    over = cluster.run("1")
    assert over.wait(60)
    on = cluster.run("import time\nfor _ in range(20): time.sleep(0.1)")
    assert over.interrupt() is False
    with pytest.raises(RunOverError, match=f"run {over.id} is over"):
        over.release()
    for act in (actions.interrupt, actions.release):
        with pytest.raises(RunOverError, match=f"run {over.id} is over"):
            act(cluster.name, over.id)
    with pytest.raises(RunOverError, match=f"run {over.id} is over"):
        actions.restart_and_wait(cluster.name, [0], over.id)
    assert on.wait(60) and on.state == "done"
    assert over.interrupt() is False  # also when no run is in progress
    on = cluster.run("import time\ntime.sleep(600)")
    assert on.interrupt() is True
    assert on.wait(60) and on.state == "interrupted"
