"""Steps for a live run, on real ranks whose kernel is busy or gone."""

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
    # Each rank, as an interrupt ends only a cell that has begun.
    while store.read(run.id).data.count(b"on the way") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    actions.interrupt(actions.acted_on(store, run.id).cluster)
    assert run.wait(60)
    assert {event["ename"] for event in run.events if event["kind"] == "error"} == {
        "KeyboardInterrupt"
    }
    with pytest.raises(RunOverError, match="is over"):
        actions.acted_on(store, run.id)
