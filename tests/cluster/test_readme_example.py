"""The Python of the README does what it says, on real ranks."""

import re
import subprocess
import sys

import pytest

from checkout import ROOT

pytestmark = pytest.mark.cluster


def test_the_readmes_python_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKROOM_HOME", str(tmp_path))
    code = next(
        block
        for block in re.findall(
            r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S
        )
        if "import rankroom" in block
    )
    promised = re.search(r"print\(run\.results\)  # (.+)", code)[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == promised
