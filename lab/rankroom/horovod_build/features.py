"""What the Horovod of this environment can do; cheap enough for a rank, imports no framework."""

from __future__ import annotations

import importlib.util
import json
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rankroom.horovod_build.edits.edit import Change
from rankroom.horovod_build.edits.gloo_edits import GLOO
from rankroom.horovod_build.edits.pace_edits import PACE
from rankroom.horovod_build.edits.span_edits import SPANS
from rankroom.horovod_build.edits.wait_edits import WAIT

LIBRARIES = {"torch": "torch/mpi_lib_v2", "tensorflow": "tensorflow/mpi_lib"}


@dataclass(frozen=True)
class Feature:
    """What works if all of `edits` are there, in users' words; `lacking` says it if they are not.

    It applies only to a Horovod with `framework`, if one is named.
    """

    edits: frozenset[str]
    lacking: str
    words: str = ""
    framework: str = ""


def _ids(edits: Iterable[Change]) -> frozenset[str]:
    return frozenset(edit.id for edit in edits)


FEATURES = (
    Feature(
        frozenset({"timeline-file", "timeline-init", "timeline-start", "timeline-stop"}),
        "a native timeline on other ranks than 0",
        "a native timeline on every rank",
    ),
    Feature(
        _ids(SPANS),
        "every rank's collectives in the timeline",
        "every rank's collectives in the timeline",
    ),
    Feature(
        frozenset(f"keras3-{what}" for what in ("variable", "optimizer", "reduction", "callbacks")),
        "Keras 3 (horovod.keras, and Keras variables in horovod.tensorflow)",
        "Keras 3",
        "tensorflow",
    ),
    Feature(_ids(WAIT), "waiting without keeping a core busy (horovod.torch)", framework="torch"),
    Feature(_ids(PACE), "collectives without delay, and idle ranks that take no processor time"),
    Feature(_ids(GLOO), "hvd.init() of many ranks within seconds"),
)


@dataclass(frozen=True)
class Features:
    """The installed Horovod; `frameworks` maps those built in to the versions they were built for.

    `key` and `edits` are Rankroom's; both are empty for a Horovod that was built by other means.
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
    def has(self) -> list[str]:
        """What works beyond what Horovod itself offers, in users' words."""
        return [each.words for each in self._possible() if each.words and self.edits >= each.edits]

    @property
    def lacks(self) -> list[str]:
        """What does not work, in users' words."""
        return [each.lacking for each in self._possible() if not self.edits >= each.edits]

    def _possible(self) -> list[Feature]:
        return [each for each in FEATURES if each.framework in ("", *self.frameworks)]


def features() -> Features | None:
    """Return what is installed, or None without Horovod."""
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
