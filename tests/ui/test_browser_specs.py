"""The browser tests (tests/ui, Playwright): a pytest test per file; only one in `make test`."""

import os
import socket
import subprocess
import sys

import pytest

from browser import CHROMIUM, PLAYWRIGHT, UI, what_failed
from rankroom.cluster.lookup import end, running_clusters
from rankroom.record.cluster_file import ClusterPaths

SPECS = sorted(path.name for path in UI.glob("*.spec.ts"))
# `make test` runs some tests for each part of the extension, `make test-all` runs all.
ALWAYS = "--grep=@always"
LONGEST_S = 900.0

pytestmark = [pytest.mark.ui, pytest.mark.timeout(1000)]


def test_there_are_browser_tests():
    assert SPECS


def pytest_generate_tests(metafunc):
    if "chosen" in metafunc.fixturenames:
        thorough = metafunc.config.getoption("--repeat") > 1
        runs = [pytest.param([spec], id=spec) for spec in SPECS]
        if not thorough:
            runs = [pytest.param([ALWAYS], id="@always")]
        metafunc.parametrize("chosen", runs)


def free_port() -> int:
    """Return a free loopback port: another checkout's tests may run at the same time."""
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return int(trying.getsockname()[1])


def test_in_the_browser(chosen, tmp_path, monkeypatch):
    assert PLAYWRIGHT.exists(), "no Playwright: `make test` sets it up (npm ci in extension/)"
    assert CHROMIUM.exists(), (
        f"no Chromium at {CHROMIUM}: install it (Debian: apt install chromium), "
        "or set RANKROOM_CHROMIUM to where it is"
    )
    monkeypatch.setenv("RANKROOM_UI_HOME", str(tmp_path))
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path / "home"))
    if "RANKROOM_TEST_PORT" not in os.environ:
        monkeypatch.setenv("RANKROOM_TEST_PORT", str(free_port()))
    monkeypatch.setenv("RANKROOM_PYTHON", os.environ.get("RANKROOM_PYTHON", sys.executable))
    results = tmp_path / "results"  # not shared, as Playwright empties it first
    try:
        done = subprocess.run(
            [PLAYWRIGHT, "test", "--output", results, *chosen],
            cwd=UI, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode("utf-8", "replace")
        pytest.fail(f"not done after {LONGEST_S:.0f} s:\n{said[-4000:]}")
    finally:
        # A failed test may leave ranks running.
        for info in running_clusters():
            end(ClusterPaths(info.name))
    assert done.returncode == 0, what_failed(done.stdout, results)
