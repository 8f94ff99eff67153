"""Steps for a live run, against clusters that are made up; test_server.py goes over HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rankroom.cluster import actions, control
from rankroom.cluster.control import Control
from rankroom.errors import NotYoursError, StartError
from rankroom.record.cluster_file import ClusterPaths
from record_makers import start_record


def test_the_cluster_of_another_user_is_left_alone(home: Path, monkeypatch):
    store, run, writer = start_record(home, cluster="theirs")
    ClusterPaths("theirs").folder.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotYoursError, match="theirs belongs to another user"):
        asyncio.run(Control(store).interrupt(run.id))
    writer.close()


def test_a_cluster_that_does_not_answer_in_time(home: Path, monkeypatch):
    store, run, writer = start_record(home, cluster="stuck")
    free = threading.Event()
    monkeypatch.setattr(actions, "release", lambda name: free.wait(60))
    monkeypatch.setattr(control, "LONGEST", 0.1)
    with pytest.raises(StartError, match="stuck did not answer within"):
        asyncio.run(Control(store).release(run.id))
    free.set()
    writer.close()


def test_a_server_that_nobody_asked_for_a_step_has_not_loaded_ipyparallel():
    code = "import sys, rankroom.server; print('ipyparallel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
