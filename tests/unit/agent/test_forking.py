"""Processes forked from a node agent: each becomes a rank, or ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A rank that exits with status 7 while its stdout is a pipe without a reader.
RANK = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from rankroom.agent import forking

def rank(world):
    global open_file
    open_file = open(sys.argv[0], "w")
    open_file.write("the last line\\n")
    end, begin = os.pipe()
    os.close(end)
    sys.stdout = os.fdopen(begin, "w")
    print("to nobody")
    raise SystemExit(7)

forking.World = SimpleNamespace(from_environment=lambda environment: None)
forking._be = rank
file, log = map(Path, sys.argv[1:])
agent = os.getpid()
if (pid := os.fork()) == 0:
    try:
        forking.become_rank(agent, 0, {}, [], log, True)
    finally:
        Path(f"{log}.goes-on").touch()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_an_exiting_rank_flushes_its_files_and_runs_no_agent_code(tmp_path: Path):
    code = RANK.replace("sys.argv[0]", repr(str(tmp_path / "kept.txt")))
    words = [sys.executable, "-c", code, tmp_path / "kept.txt", tmp_path / "log"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("7\n", "")
    assert (tmp_path / "kept.txt").read_text() == "the last line\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept.txt", "log"]
