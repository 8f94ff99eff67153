"""Ranks without a job have no time limit."""

from __future__ import annotations

import pytest

from cells import values
from rankroom.cluster.local import Cluster


@pytest.mark.cluster
def test_local_ranks_have_no_time_limit(cluster: Cluster):
    assert values(cluster, "import rankroom\n[rankroom.time_left()]") == [[None], [None]]
