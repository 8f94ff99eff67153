"""Waiting for a run: what `wait` returns, and how soon."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankroom.cluster import base, liveness, repair
from rankroom.cluster.base import AnyCluster
from rankroom.record.cluster_file import ClusterInfo, ClusterPaths
from rankroom.record.model import RunInfo
from rankroom.record.owner import this_process
from rankroom.record.store import Store
from rankroom.run.run import Run
from record_makers import gone_process, start_record


def ask(*question: Any, **more: Any) -> dict[str, Any]:
    return {}


def test_a_finished_replica_is_recognized_without_waiting(tmp_path: Path):
    store, info, writer = start_record(tmp_path)
    before, after = (
        Run(RunInfo.from_json(info.to_json()), store, ask, is_replica=True) for _ in range(2)
    )
    assert not before.wait(0)
    info.state = "done"
    writer.finish(info)
    assert after.wait(0) and after.state == "done"


@pytest.fixture
def orphaned(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], bool]:
    """Return `_is_orphaned` of a cluster whose supervisor is gone and whose ranks still run."""
    cluster = object.__new__(AnyCluster)
    cluster.paths, cluster.store, cluster._orphaned = ClusterPaths("x"), Store(), {}
    monkeypatch.setattr(liveness, "alive", lambda info: False)
    monkeypatch.setattr(repair, "complete", lambda store, info: False)
    return cluster._is_orphaned


def test_waiting_for_an_orphaned_run_respects_the_timeout(
    home: Path, orphaned: Callable[[Run], bool], monkeypatch: pytest.MonkeyPatch
):
    store, info, writer = start_record(home, owner=gone_process())
    run, begun = Run(info, store, ask, orphaned), time.monotonic()
    assert not run.wait(0.7)  # longer than WRITER_CHECK_INTERVAL_S
    assert time.monotonic() - begun < 10
    monkeypatch.setattr(base, "ORPHANED_S", 0.0)
    assert run.wait(10) and run.state == "lost"
    writer.close()


def test_a_run_whose_record_and_supervisor_are_gone_is_lost(
    home: Path, orphaned: Callable[[Run], bool]
):
    store, info, writer = start_record(home)
    writer.close()
    shutil.rmtree(store.paths(info.id).folder)
    run = Run(info, store, ask, orphaned)
    assert run.wait(10) and run.state == "lost"


def test_a_replica_that_has_not_come_yet_is_not_lost(tmp_path: Path):
    store, info, writer = start_record(tmp_path)
    writer.close()
    shutil.rmtree(store.paths(info.id).folder)
    run = Run(info, store, ask, is_replica=True)
    assert not run.wait(0.05) and run.state == "running"


def test_a_finished_run_ignores_older_states_that_arrive_late(tmp_path: Path):
    """For example if a full disk delayed the closing of its record."""
    store, info, writer = start_record(tmp_path, notes=["the disk is full"])
    run = Run(info, store, ask)
    run.told(replace(info, state="done"))
    run.told(replace(info, notes=[]))  # an older state that arrives late
    assert run.wait(0) and run.state == "done" and run.info.notes == ["the disk is full"]
    run.told(replace(info, state="done", notes=[]))
    assert run.info.notes == []
    writer.close()


def test_a_run_ends_with_its_supervisor_even_if_a_new_one_has_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    cluster = object.__new__(AnyCluster)
    cluster.paths, cluster.store, cluster._orphaned = ClusterPaths("x"), Store(), {}
    me, asked = this_process(), []
    cluster.paths.make(1)
    cluster.paths.write(ClusterInfo("x", 1, "running", supervisor=me.pid, began=me.began))
    monkeypatch.setattr(repair, "complete", lambda store, info: asked.append(info.id) or True)
    store, info, writer = start_record(home, owner=gone_process())
    run = Run(info, store, ask, cluster._is_orphaned)
    assert run.wait(10) and asked == [info.id]
    writer.close()
