"""A rank that crashes in native code is reported with the library it crashed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankroom.cluster.local import Cluster


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("before", "named"),
    [
        ("", "in native code called by ctypes/__init__.py"),
        ("import horovod.torch as hvd; hvd.init()", "_ctypes."),
    ],
)
def test_a_native_crash_is_reported_with_its_library(home: Path, before: str, named: str) -> None:
    cluster = Cluster.local(ranks=2)
    try:
        source = f"{before}\nimport ctypes\nif rank == 1:\n    ctypes.string_at(8)"
        run = cluster.run(source)
        assert run.wait(120)
        said = run.info.failure.evalue
        assert said.startswith("rank 1 was killed by SIGSEGV: it crashed in ")
        assert named in said and "`rankroom horovod check`" in said
        assert cluster.run("1", ranks=[0]).wait(60)
    finally:
        cluster.stop()
