"""The README's cells and Python code do what it says, on real ranks."""

import os
import re
import subprocess
import sys

import pytest

from checkout import ROOT
from kernel import Kernel

pytestmark = pytest.mark.cluster

README = (ROOT / "README.md").read_text("utf-8")


def test_the_sixty_seconds_chapter_shows_the_promised_output(tmp_path):
    chapter = README.partition("## Sixty seconds\n")[2].partition("\n## ")[0]
    start, cell, shown = re.findall(r"```(?:python)?\n(.*?)\n```", chapter, re.S)
    kernel = Kernel(**{**os.environ, "RANKROOM_HOME": str(tmp_path)})
    try:
        assert kernel.run(start).error == ""
        text = kernel.run(cell).text
        kernel.run("%cluster stop")
    finally:
        kernel.close()

    first, *log, last = timeless(shown)
    # A diagnosis of the profile may precede the log, and either rank's lines may come first.
    found = [line for line in timeless(text) if line in (first, *log, last)]
    assert (found[0], sorted(found[1:-1]), found[-1]) == (first, log, last)


def timeless(text: str) -> list[str]:
    return re.sub(r"done in [\d.]+ m?s", "done", text).strip().splitlines()


def test_the_readmes_python_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.S)
        if "import rankroom" in block
    )
    promised = re.search(r"print\(run\.results\)  # (.+)", code)[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == promised
