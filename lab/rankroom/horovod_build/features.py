"""What the Horovod of this environment can do; cheap enough for a rank, imports no framework."""

from __future__ import annotations

import importlib.util
import json
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rankroom.horovod_build.edits.gloo_edits import GLOO
from rankroom.horovod_build.edits.pace_edits import PACE
from rankroom.horovod_build.edits.span_edits import SPANS
from rankroom.horovod_build.edits.wait_edits import WAIT

LIBRARIES = {"torch": "torch/mpi_lib_v2", "tensorflow": "tensorflow/mpi_lib"}
# A feature is there when all of its edits are.
TIMELINE_EDITS = frozenset({"timeline-file", "timeline-init", "timeline-start", "timeline-stop"})
SPANS_EDITS = frozenset(edit.id for edit in SPANS)
KERAS_EDITS = frozenset(
    f"keras3-{what}" for what in ("variable", "optimizer", "reduction", "callbacks")
)
WAIT_EDITS = frozenset(edit.id for edit in WAIT)
PACE_EDITS = frozenset(edit.id for edit in PACE)
MEET_EDITS = frozenset(edit.id for edit in GLOO)


@dataclass(frozen=True)
class Features:
    """`frameworks` maps those built in to the versions they were built for.

    `key` and `edits` are Rankroom's; both are empty for a Horovod that others built.
    """

    version: str
    path: Path
    frameworks: dict[str, str]
    key: str = ""
    edits: frozenset[str] = frozenset()

    @property
    def patched(self) -> bool:
        return bool(self.edits)

    @property
    def rank_timelines(self) -> bool:
        """Every rank writes a native timeline, not only rank 0."""
        return self.edits >= TIMELINE_EDITS

    @property
    def rank_spans(self) -> bool:
        """Every rank keeps what it did in each collective, for the timeline under a cell."""
        return self.edits >= SPANS_EDITS

    @property
    def keras3(self) -> bool:
        """`horovod.keras` and `horovod.tensorflow` take Keras 3's optimizers and variables."""
        return self.edits >= KERAS_EDITS

    @property
    def waits_asleep(self) -> bool:
        """A rank that waits for others leaves the core to them."""
        return self.edits >= WAIT_EDITS

    @property
    def keeps_pace(self) -> bool:
        """Collectives begin as soon as they can, and idle ranks take hardly any processor time."""
        return self.edits >= PACE_EDITS

    @property
    def meets_at_once(self) -> bool:
        """hvd.init() of many ranks takes seconds, and a rank may be stopped for a while."""
        return self.edits >= MEET_EDITS

    @property
    def lacks(self) -> list[str]:
        """What does not work, in the user's words."""
        missing = []
        if not self.rank_timelines:
            missing.append("a native timeline on other ranks than 0")
        if not self.rank_spans:
            missing.append("every rank's collectives in the timeline")
        if "tensorflow" in self.frameworks and not self.keras3:
            missing.append("Keras 3 (horovod.keras, and Keras variables in horovod.tensorflow)")
        if "torch" in self.frameworks and not self.waits_asleep:
            missing.append("waiting without keeping a core busy (horovod.torch)")
        if not self.keeps_pace:
            missing.append("collectives without delay, and idle ranks that take no processor time")
        if not self.meets_at_once:
            missing.append("hvd.init() of many ranks within seconds")
        return missing


def features() -> Features | None:
    """What is installed, or None without Horovod."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent
    marker = _json(path / "rankroom.json")
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        version = "unknown"  # a site's own, found by PYTHONPATH
    edits = marker.get("edits")
    built = _json(path / "metadata.json")
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return Features(
        version=version,
        path=path,
        frameworks={
            name: str(built.get("pytorch" if name == "torch" else name, "unknown"))
            for name, library in LIBRARIES.items()
            if (path / f"{library}{suffix}").is_file()
        },
        key=str(marker.get("key", "")),
        edits=frozenset(edits if isinstance(edits, list) else ()),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
