"""The documentation site: all of it is built, and a broken link between pages is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the site's sources, so that nothing is written to this checkout; return the tool."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for name in ("docs", "lab", "notebooks", "slurm", "tools"):
        subprocess.run(["cp", "-r", ROOT / name, copy / name], check=True)
    return copy / "tools" / "docs.py"


def build(tools: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PYTHONPATH": str(tools.parents[1] / "lab"),
        "RANKROOM_CACHE": str(tools.parents[1] / ".cache"),
    }
    return subprocess.run(
        [sys.executable, tools, "--keep-lessons"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def test_the_documentation_is_built_and_a_broken_link_fails_the_build(tools: Path):
    done = build(tools)
    assert done.returncode == 0, done.stdout
    site = tools.parents[1] / "dist" / "docs"
    reference = (site / "api.html").read_text()
    for name in ("rankroom.Cluster.local", "rankroom.Run.wait", "rankroom.span"):
        assert f'id="{name}"' in reference
    assert "rankroom runs show" in (site / "commands.html").read_text()
    assert "%%distributed" in (site / "magics.html").read_text()
    assert (site / "course" / "12_find_the_straggler.html").exists()
    assert (site / "searchindex.js").exists()

    with (tools.parents[1] / "docs" / "sites.md").open("a") as page:
        page.write("\n[nowhere](no-such-page.md)\n")
    done = build(tools)
    assert done.returncode != 0
    assert "no-such-page.md" in done.stdout
