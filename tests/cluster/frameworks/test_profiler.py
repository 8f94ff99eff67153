"""--profile on real ranks: operators from the frameworks' profilers, on the other spans' clock."""

import ast
from textwrap import dedent

import pytest

from cells import failure, log
from spanned import spans

pytestmark = pytest.mark.cluster
TORCH = """
import time, torch
x = torch.ones(400, 400)
calls = []
with span("products"):
    for _ in range(5):
        begin = time.time_ns() // 1000
        y = x @ x
        calls.append((begin, time.time_ns() // 1000))
calls
"""
TENSORFLOW = """
import tensorflow as tf
@tf.function
def product(x):
    return tf.matmul(x, x)
x = tf.ones((400, 400))
product(x)
with span("products"):
    for _ in range(5):
        y = product(x)
    y.numpy()
"""


def profile(cluster, source):
    """Run a cell with the profilers on; it must succeed."""
    run = cluster.run(dedent(source), profile=True)
    assert run.wait(120)
    assert run.state == "done", failure(run)
    return run


def inside(run, rank, name):
    """Return the operators with `name` in their names, and the user's span "products"."""
    (products,) = spans(run, rank, "user")
    return [each for each in spans(run, rank, "op") if name in each.name], products


def test_a_cell_without_frameworks_says_there_is_nothing_to_profile(cluster):
    run = profile(cluster, "1 + 1")
    for rank in (0, 1):
        assert "neither torch nor tensorflow" in log(run, rank, "stderr")
        assert not spans(run, rank, "op")
    assert run.results == {0: "2", 1: "2"}


@pytest.mark.parametrize("again", [False, True])
def test_torch_operators_are_profiled_from_the_import_on(cluster, again):
    run = profile(cluster, TORCH)
    for rank in (0, 1):
        products, around = inside(run, rank, "aten::mm")
        assert len(products) == 5
        # Operators are on the same clock as the cell.
        calls = ast.literal_eval(run.results[rank])
        for each, (begin, end) in zip(products, calls, strict=True):
            assert begin - 1000 <= run.info.start + each.start
            assert run.info.start + each.end <= end + 1000
            assert around.start - 1000 <= each.start and each.end <= around.end + 1000
        assert products[0].about["thread"].startswith("thread ")
        assert log(run, rank, "stderr") == ""


def test_a_cell_without_the_profile_option_is_not_profiled(cluster):
    run = cluster.run(dedent(TORCH))
    assert run.wait(60) and run.state == "done"
    assert not spans(run, 0, "op")


def test_a_cell_that_raises_is_profiled_and_its_error_is_reported(cluster):
    run = cluster.run("import torch\ntorch.ones(3) + 1\nraise ValueError('mine')", profile=True)
    assert run.wait(60)
    assert failure(run) in ("rank 0: ValueError: mine", "rank 1: ValueError: mine")
    assert "aten::add" in [each.name for each in spans(run, 0, "op")]


def test_the_users_own_profiler_comes_first(cluster):
    mine = """
    import torch
    mine = torch.profiler.profile()
    mine.start()
    torch.ones(3) + 1
    mine.stop()
    "aten::add" in [each.name for each in mine.events()]
    """
    run = profile(cluster, mine)
    assert run.results == {0: "True", 1: "True"}
    assert "--profile: torch could not be profiled" in log(run, 0, "stderr")
    assert cluster.run("mine = torch.profiler.profile()\nmine.start()").wait(60)
    run = profile(cluster, "torch.ones(3) + 1\n5")
    assert run.results == {0: "5", 1: "5"}
    assert "your own profiler is running" in log(run, 0, "stderr")
    run = profile(cluster, "mine.stop()\n'aten::add' in [each.name for each in mine.events()]")
    assert run.results == {0: "True", 1: "True"}


def test_only_the_longest_operators_are_kept(cluster):
    assert cluster.run("from rankroom.rank import profiler\nprofiler.MAX_OPERATIONS = 100").wait(60)
    try:
        run = profile(cluster, TORCH + "for _ in range(500): torch.ones(1) + 1")
        for rank in (0, 1):
            found = spans(run, rank, "op")
            assert len(found) == 100
            assert [each.name for each in found].count("aten::mm") == 5
            assert "--profile: only the 100 longest of " in log(run, rank, "stderr")
    finally:
        assert cluster.run("profiler.MAX_OPERATIONS = 100_000").wait(60)


@pytest.mark.thorough
def test_tensorflow_operators_are_profiled_from_the_import_on(cluster):
    for _ in range(2):
        run = profile(cluster, TENSORFLOW)
        for rank in (0, 1):
            products, around = inside(run, rank, "MatMul")
            within = [e for e in products if around.start - 1000 <= e.start <= around.end + 1000]
            assert len(within) >= 5
            assert max(each.end for each in within) <= around.end + 1000
            assert products[0].about["thread"]


@pytest.mark.thorough
def test_both_frameworks_are_profiled_in_one_cell(cluster):
    run = profile(cluster, TORCH.replace("products", "torch") + TENSORFLOW)
    for rank in (0, 1):
        found = [each.name for each in spans(run, rank, "op")]
        assert "aten::mm" in found
        assert any("MatMul" in each for each in found)
