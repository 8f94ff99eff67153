"""The Ranks sidebar, JupyterLab and a browser on the laptop; the ranks on compute nodes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from browser import CHROMIUM, PLAYWRIGHT, UI, what_failed
from labs import profile, settings
from machines import Machines
from remote import Laptop, until_nothing_runs

# A second job then has to wait for nodes.
SHARED_WITH_NOBODY = profile(nodes=2, ranks_per_node=1, extra=["--exclusive"])


@pytest.mark.thorough
@pytest.mark.ui
def test_the_sidebar_starts_and_ends_clusters_on_a_real_site(machines: Machines, tmp_path: Path):
    """The form starts ranks on two nodes, a job that waits, and one that is refused; all end."""
    assert PLAYWRIGHT.exists() and CHROMIUM.exists(), "`make test` sets up Playwright and Chromium"
    with Laptop(machines, {"test": SHARED_WITH_NOBODY}) as laptop:
        own = [
            *settings(laptop.home), f"RANKROOM_UI_HOME={laptop.home}", "RANKROOM_UI_SITE=test",
            "RANKROOM_TEST_PORT=8899", f"RANKROOM_PYTHON={sys.executable}",
        ]  # fmt: skip
        argv = [PLAYWRIGHT, "test", "site.spec.ts", "--config", UI / "playwright.config.ts"]
        argv += ["--output", laptop.home / "results"]
        said = machines.run("laptop", ["env", *own, *argv], timeout=900)
        if "1 passed" not in said:
            shutil.copytree(laptop.home / "results", tmp_path / "results")
            why = what_failed(said, laptop.home / "results")
            pytest.fail(f"{why}\npictures are in {tmp_path}")
        until_nothing_runs(machines)
        # The page shows the end of a cluster before its supervisor has ended.
        laptop.until_unkept()
