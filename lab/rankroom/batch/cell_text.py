"""What a notebook's cell showed, as text for a terminal or a log."""

from __future__ import annotations

from typing import Any


def said(outputs: list[Any]) -> str:
    """What a cell shows, as text; of progress that writes over itself, what is left."""
    written = ""
    for output in outputs:
        if output.output_type == "stream":
            written += output.text
        else:
            written += output.get("data", {}).get("text/plain", "").rstrip() + "\n"
    # A terminal's lines end in \r\n: of those, too, what stood there last is left.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in written.split("\n")]
    return "".join(f"{line}\n" for line in lines if line)


def short(error: Exception) -> str:
    """An error of a cell, without the cell's source and traceback."""
    name, value = getattr(error, "ename", ""), getattr(error, "evalue", "")
    return f"{name}: {value}" if name else str(error).strip().splitlines()[-1]
