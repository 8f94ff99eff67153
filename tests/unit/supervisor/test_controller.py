"""The controller of a cluster ends with the cluster's supervisor."""

from __future__ import annotations

import threading

import pytest
from ipyparallel.controller import heartmonitor

from rankroom.supervisor.processes import controller


def test_the_controller_follows_its_supervisor_even_if_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    followed: list[int] = []
    done = threading.Event()
    monkeypatch.setenv("RANKROOM_SUPERVISOR", "4000000")
    monkeypatch.setattr(heartmonitor, "HeartMonitor", heartmonitor.HeartMonitor)  # restored later
    monkeypatch.setattr(controller, "follow", lambda pid: (followed.append(pid), done.set()))
    monkeypatch.setattr(controller.Controller, "launch_instance", lambda: None)
    controller.main()
    assert done.wait(10) and followed == [4000000]
