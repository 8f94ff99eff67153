"""PyTorch and TensorFlow in the same ranks, in either order: each trains with Horovod.

Both load large C++ libraries, and Horovod has a library for each of them, with classes of the same
names: neither may use symbols that another one exports. `make interpreters` runs this with each
build of PyTorch.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cells import failure, finish
from checkout import TUTORIALS
from rankroom.cluster.local import Cluster

pytestmark = pytest.mark.cluster


@pytest.mark.thorough
@pytest.mark.parametrize(
    "order", [("horovod_torch", "horovod_keras"), ("horovod_keras", "horovod_torch")]
)
def test_torch_and_tensorflow_train_in_one_process(home: Path, order: tuple[str, str]) -> None:
    cluster = Cluster.local(ranks=2)
    try:
        for tutorial in (*order, order[0]):
            run = finish(cluster, (TUTORIALS / f"{tutorial}.py").read_text(), 240)
            assert run.state == "done", failure(run)
            ranks = [ast.literal_eval(run.results[rank]) for rank in (0, 1)]
            assert ranks[0] == ranks[1]
            assert ranks[0]["accuracy"] > 0.7
    finally:
        cluster.stop()
