"""Unmet requirements of a lesson: found without a run, and reported with a remedy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankroom.course import requirements
from rankroom.course.lessons import lesson
from rankroom.course.requirements import missing_here, unmet_needs
from rankroom.horovod_build.features import Features


def ranks(size: int, *lacks: str) -> Any:
    """A cluster without `run`, as a run would become the newest record."""

    def apply(rank: int, function: Any, names: list[str], patience: float) -> list[str]:
        assert function is missing_here
        return [name for name in names if {name, name.partition(">")[0]} & {*lacks}]

    return SimpleNamespace(size=size, apply=apply)


def test_unmet_requirements_are_reported_with_a_remedy():
    assert unmet_needs(ranks(2), lesson(3)) == ""
    assert unmet_needs(ranks(1), lesson(3)) == (
        "lesson 03 Ring all-reduce needs 2 ranks, and you have 1: `%cluster resize 2`, then "
        "`%course 3` again"
    )
    assert unmet_needs(ranks(2, "torch", "deepspeed"), lesson(8)) == (
        "lesson 08 DeepSpeed needs torch, deepspeed, which the ranks do not have: `pip install "
        "torch`; `pip install deepspeed`, then `%cluster restart` and `%course 8` again. Lessons "
        "that work already: 0, 1, 5, 6, 9, 15, 16"
    )


def test_missing_packages_and_submodules_are_found():
    there = ["json", "json.decoder", "numpy"]
    assert missing_here([*there, "no_such_package", "no_such_package.part"]) == [
        "no_such_package",
        "no_such_package.part",
    ]


def test_horovod_built_for_another_framework_counts_as_missing(monkeypatch: pytest.MonkeyPatch):
    """Horovod has the Python files of all frameworks, whichever it was built for."""
    built = Features("0.28.1", Path("/x"), {"torch": "2.5.1"})
    monkeypatch.setattr(requirements, "find_spec", lambda name: object())
    monkeypatch.setattr(requirements, "features", lambda: built)
    assert missing_here(["torch", "horovod.torch", "horovod.tensorflow"]) == ["horovod.tensorflow"]
    said = unmet_needs(ranks(2, "horovod.tensorflow"), lesson(5))
    assert "needs horovod.tensorflow" in said and "`rankroom horovod build` builds it" in said


def test_a_package_that_is_too_old_counts_as_missing(monkeypatch: pytest.MonkeyPatch):
    """With a PyTorch that lacks `fully_shard`, a lesson would fail halfway through."""
    installed = {"torch": "2.5.1+cu124"}
    monkeypatch.setattr(requirements, "version", lambda name: installed[name])
    assert missing_here(["torch", "torch>=2.5", "torch>=2.6"]) == ["torch>=2.6"]
    installed["torch"] = "2.13.0"
    assert missing_here(["torch>=2.6"]) == []
    said = unmet_needs(ranks(2, "torch>=2.6"), lesson(18))
    assert "needs torch>=2.6, which the ranks do not have: `pip install 'torch>=2.6'`" in said
    assert "Lessons that work already: 0, 1, 2, 3," in said and "13, 15, 16, 17, 19" in said
