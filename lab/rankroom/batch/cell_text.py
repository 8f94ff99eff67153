"""The output of a notebook's cell, as text for a terminal or a log."""

from __future__ import annotations

from typing import Any


def said(outputs: list[Any]) -> str:
    """Return a cell's outputs as text; of progress bars that overwrite a line, the final state."""
    written = ""
    for output in outputs:
        if output.output_type == "stream":
            written += output.text
        else:
            written += output.get("data", {}).get("text/plain", "").rstrip() + "\n"
    # Of each line, what follows the last \r; but a line of a terminal ends in \r\n.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in written.split("\n")]
    return "".join(f"{line}\n" for line in lines if line)


def short(error: Exception) -> str:
    """Return a cell's error in one line, without the cell's source and traceback."""
    name, value = getattr(error, "ename", ""), getattr(error, "evalue", "")
    return f"{name}: {value}" if name else str(error).strip().splitlines()[-1]
