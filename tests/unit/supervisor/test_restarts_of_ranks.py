"""Restarts of ranks, and how long they may take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rankroom.record.cluster_file import ClusterInfo
from rankroom.supervisor.processes.restarts import Restarts


def test_a_configuration_that_breaks_later_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """When a rank dies, its run is told how long to wait: the file may be invalid by then."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RANKROOM_START_SECONDS", raising=False)
    file = tmp_path / "rankroom" / "config.toml"
    file.parent.mkdir()
    file.write_text("start_seconds = 7\n")
    restarts = Restarts(ClusterInfo("a", 2), SimpleNamespace(born={0: 0.0}), {0, 1})  # type: ignore[arg-type]
    file.write_text("start_sec")  # a user is editing it
    assert restarts.ask_for([0]) == ""
    assert restarts.return_timeout_s(0) == 7
