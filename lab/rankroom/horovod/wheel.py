"""Finish a compiled wheel: apply the Python edits to it and say inside it what was done.

Editing the wheel instead of the source means that a changed .py file costs seconds, not minutes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankroom.horovod.edits import Change, apply

MARKER = "horovod/rankroom.json"


def finish(compiled: Path, folder: Path, edits: Iterable[Change], marker: Any) -> Path:
    """Write the wheel `compiled`, with `edits` applied and MARKER added, into `folder`."""
    wheel = folder / compiled.name
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = Path(scratch)
        with zipfile.ZipFile(compiled) as source:
            source.extractall(tree)
        apply(tree, edits)
        (tree / MARKER).write_text(json.dumps(marker, indent=1) + "\n")
        _pack(tree, wheel)
    return wheel


def _pack(tree: Path, wheel: Path) -> None:
    record = next(tree.glob("*.dist-info")) / "RECORD"
    record.unlink()
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        with record.open("w", newline="") as handle:
            rows = csv.writer(handle, lineterminator="\n")
            for path in files:
                name = path.relative_to(tree).as_posix()
                content = path.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                rows.writerow([name, f"sha256={digest.decode().rstrip('=')}", len(content)])
                target.write(path, name)
            rows.writerow([record.relative_to(tree).as_posix(), "", ""])
        target.write(record, record.relative_to(tree).as_posix())
