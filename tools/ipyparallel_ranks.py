"""A pytest plugin: ipyparallel's own tests use the ranks of a Rankroom cluster as engines.

`-p ipyparallel_ranks` loads it before their own conftest: their fixture `cluster` starts a
controller and engines with functions of `ipyparallel.tests`, which are replaced here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ipyparallel.tests as tests
import pytest
from ipyparallel import Client, error
from IPython.paths import get_ipython_dir

from ipyparallel_suite import RANKS
from rankroom.cluster.local import Cluster
from rankroom.system.polling import poll_until

READY_S = 30.0
PROFILE = "iptest"  # the profile that their clients use

running: list[Cluster] = []


def setup() -> None:
    """Start the ranks, and link their connection file to where the tests look for it."""
    error.RemoteError = tests.RemoteErrorWithTB
    cluster = Cluster.local(ranks=RANKS, auto_restart=True)
    running.append(cluster)
    cluster.run("%colors nocolor").wait()  # as their own engines are started
    folder = Path(get_ipython_dir(), f"profile_{PROFILE}", "security")
    folder.mkdir(parents=True)
    (folder / cluster.paths.client_file.name).symlink_to(cluster.paths.client_file)


def teardown() -> None:
    while running:
        running.pop().stop()


def add_engines(n: int = 1, profile: str = PROFILE, total: bool = False) -> list[Any]:
    """Wait until `n` ranks are connected; one that a test has ended is restarted."""
    if not total:
        pytest.skip("adds engines, and a cluster's ranks are as many from beginning to end")
    with Client(profile=profile) as client:
        if not poll_until(lambda: len(client.ids) == RANKS >= n, READY_S, 0.1):
            raise RuntimeError(f"{len(client.ids)} of {RANKS} ranks are there, {n} are needed")
    return []


tests.setup, tests.teardown, tests.add_engines = setup, teardown, add_engines
# A cluster's controller uses CURVE, as their own would with this variable.
os.environ["IPP_ENABLE_CURVE"] = "1"
