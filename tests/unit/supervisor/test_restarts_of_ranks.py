"""Which ranks come back, and how long that may take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rankroom.record.cluster_file import ClusterInfo
from rankroom.supervisor.processes.restarts import Restarts


def test_a_configuration_that_breaks_later_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Runs hear that a rank has died with how long it is waited for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RANKROOM_START_SECONDS", raising=False)
    file = tmp_path / "rankroom" / "config.toml"
    file.parent.mkdir()
    file.write_text("start_seconds = 7\n")
    restarts = Restarts(ClusterInfo("a", 2), SimpleNamespace(born={0: 0.0}), {0, 1})  # type: ignore[arg-type]
    file.write_text("start_sec")  # somebody is editing it
    assert restarts.ask_for([0]) == ""
    assert restarts.return_timeout_s(0) == 7
