"""The features detected in an installed Horovod, whether or not Rankroom built it."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from rankroom.errors import HorovodBuildError
from rankroom.horovod_build import check, features
from rankroom.horovod_build.plan import ALL_EDITS
from rankroom.notebook.cluster_magic import horovod_line


@pytest.fixture(autouse=True)
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget an imported Horovod, which would be found whatever `sys.path` is."""
    monkeypatch.delitem(sys.modules, "horovod", raising=False)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fake Horovod package, alone on `sys.path`; importing it would fail."""
    package = tmp_path / "horovod"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for library in ("torch/mpi_lib_v2", "tensorflow/mpi_lib"):
        path = package / f"{library}{suffix}"
        path.parent.mkdir(parents=True)
        path.touch()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "metadata.json").write_text('{"pytorch": "2.5.1", "tensorflow": "2.17.0"}')
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return package


def mark(package: Path, edits: list[str], key: str = "a-key") -> None:
    (package / "rankroom.json").write_text(json.dumps({"key": key, "edits": edits}))


def test_a_horovod_not_built_by_rankroom_lacks_all_features(site: Path) -> None:
    here = features.features()
    assert here is not None and not here.patched and here.key == ""
    assert here.frameworks == {"torch": "2.5.1", "tensorflow": "2.17.0"}
    assert here.has == []
    assert [text.split(" (")[0] for text in here.lacks] == [
        "a native timeline on other ranks than 0",
        "every rank's collectives in the timeline",
        "Keras 3",
        "waiting without keeping a core busy",
        "collectives without delay, and idle ranks that take no processor time",
        "hvd.init() of many ranks within seconds",
    ]
    lines = check.describe(here)
    assert "not built by Rankroom" in lines[0] and lines[1].startswith("  lacks ")


def test_a_horovod_built_by_rankroom_has_all_features(site: Path) -> None:
    mark(site, [edit.id for edit in ALL_EDITS])
    here = features.features()
    assert here is not None and here.patched and here.key == "a-key"
    assert here.lacks == []
    assert (
        "a native timeline on every rank, every rank's collectives in the timeline, Keras 3"
        in (check.describe(here)[1])
    )


@pytest.mark.parametrize("feature", features.FEATURES, ids=lambda feature: feature.lacking)
def test_a_feature_needs_all_of_its_edits(site: Path, feature: features.Feature) -> None:
    assert feature.edits
    for left_out in sorted(feature.edits):
        mark(site, [edit.id for edit in ALL_EDITS if edit.id != left_out])
        here = features.features()
        assert here is not None and here.lacks == [feature.lacking], left_out
        assert feature.words not in here.has
        assert f"is an older build of Rankroom's and lacks {feature.lacking}" in horovod_line(here)
    mark(site, [edit.id for edit in ALL_EDITS])
    whole = features.features()
    assert whole is not None and not whole.lacks
    assert not feature.words or feature.words in whole.has


def test_without_tensorflow_keras_is_not_reported_as_lacking(site: Path) -> None:
    next((site / "tensorflow").iterdir()).unlink()
    here = features.features()
    assert here is not None and here.frameworks == {"torch": "2.5.1"}
    assert here.lacks == [
        "a native timeline on other ranks than 0",
        "every rank's collectives in the timeline",
        "waiting without keeping a core busy (horovod.torch)",
        "collectives without delay, and idle ranks that take no processor time",
        "hvd.init() of many ranks within seconds",
    ]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"edits": null, "key": 3}'])
def test_a_broken_marker_is_ignored(site: Path, content: str) -> None:
    (site / "rankroom.json").write_text(content)
    here = features.features()
    assert here is not None and not here.patched


def test_a_missing_horovod_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert features.features() is None
    with pytest.raises(HorovodBuildError, match="rankroom horovod build"):
        check.check(print)


def test_a_horovod_without_frameworks_is_reported(site: Path) -> None:
    for folder in ("torch", "tensorflow"):
        next((site / folder).iterdir()).unlink()
    with pytest.raises(HorovodBuildError, match=r"no framework built in.*--force"):
        check.check(lambda line: None)
