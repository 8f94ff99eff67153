"""Finish compiled wheels: merge them, apply the Python edits, and record what was done.

Editing the wheel instead of the source means that a changed .py file costs seconds, not minutes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rankroom.horovod_build.edits.edit import Change, apply

MARKER = "horovod/rankroom.json"
METADATA = "horovod/metadata.json"


def finish(
    compiled: Sequence[Path], folder: Path, edits: Iterable[Change], marker: dict[str, Any]
) -> Path:
    """Write one wheel into `folder`: the libraries of all `compiled`, with `edits` and MARKER."""
    wheel = folder / compiled[0].name
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = Path(scratch)
        built: dict[str, str] = {}
        for part in compiled:
            with zipfile.ZipFile(part) as source:
                source.extractall(tree)
            # Which frameworks it was built for; each part lists only its own.
            built |= json.loads((tree / METADATA).read_text())
        (tree / METADATA).write_text(json.dumps(built, indent=1) + "\n")
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
