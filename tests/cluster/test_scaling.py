"""`%%scaling`: the numbers computed from given times, and the magic on real ranks."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cells import failure, finish, values
from kernel import Kernel
from rankroom.analysis.chart import VEGA
from rankroom.analysis.scaling import Measured, Scaling, bundle, parse_rank_counts
from rankroom.analysis.timeline import Timeline
from rankroom.cluster.local import Cluster
from rankroom.errors import UsageError
from rankroom.rank.subworld import environment
from rankroom.rank.world import World
from rankroom.record.model import RankInfo, RunInfo, event_line

NOTHING = {"compute": 0, "data": 0, "waiting": 0, "exposed": 0, "idle": 0}


def made(times: dict[int, list[int]], weak: bool = False, **causes: dict[int, int]) -> Scaling:
    """Return a Scaling of given times in µs; causes other than compute are by number of ranks."""
    scaling = Scaling(weak)
    for ranks, each in times.items():
        for at, run in enumerate(each):
            spent = {**NOTHING, **{name: found.get(ranks, 0) for name, found in causes.items()}}
            spent["compute"] = run - sum(spent.values())
            scaling.add(ranks, Measured(run, spent, f"{ranks}-{at}"))
    return scaling


# -- numbers


def test_speed_up_and_efficiency_are_of_medians():
    scaling = made({1: [1000, 4000, 1100], 2: [550], 4: [275, 275]})
    rows = scaling.rows()
    assert [row["speed_up"] for row in rows] == [1.0, 2.0, 4.0]
    assert [row["efficiency"] for row in rows] == [1.0, 1.0, 1.0]
    assert rows[0]["time"] == pytest.approx(0.0011)
    assert (rows[0]["fastest"], rows[0]["slowest"]) == (0.001, 0.004)
    assert rows[0]["runs"] == ["1-0", "1-1", "1-2"] and rows[0]["repeats"] == 3


def test_weak_scaling_efficiency_is_the_ratio_of_times():
    scaling = made({1: [1000], 2: [1250], 4: [2000]}, weak=True)
    assert [row["efficiency"] for row in scaling.rows()] == [1.0, 0.8, 0.5]
    assert [row["speed_up"] for row in scaling.rows()] == [1.0, 1.6, 2.0]
    assert scaling.serial() is None


def test_without_a_run_on_one_rank_the_fewest_ranks_are_the_baseline():
    scaling = made({2: [1000], 4: [625]})
    assert [row["speed_up"] for row in scaling.rows()] == [2.0, 3.2]
    assert scaling.serial() is None


@pytest.mark.parametrize("share", [0.0, 0.12, 0.5, 1.0])
def test_the_serial_share_of_amdahls_law_is_recovered(share: float):
    times = {n: [round(1_000_000 * (share + (1 - share) / n))] for n in (1, 2, 4, 8)}
    assert made(times).serial() == pytest.approx(share, abs=1e-3)
    percent = f"{share * 100:.0f} % serial"
    assert any(f"fits Amdahl's law with {percent}" in line for line in made(times).remarks())


def test_times_that_do_not_fit_amdahls_law_give_no_serial_share():
    assert made({1: [1000], 2: [400], 4: [900]}).serial() is None
    assert made({1: [1000], 2: [600]}).serial() is None, "two points fit anything"
    assert made({1: [0], 2: [0], 4: [0]}).serial() is None


def test_the_main_cause_of_lost_time_is_named():
    scaling = made({1: [1000], 4: [450]}, waiting={4: 180})
    assert "on 4 ranks, 90 % of the lost time is waiting for others" in scaling.remarks()
    assert made({1: [1000], 4: [255]}, waiting={4: 5}).cause() == ""


def test_causes_are_taken_from_the_median_run():
    scaling = Scaling()
    for time_, waiting in ((300, 30), (100, 1), (200, 20)):
        scaling.add(2, Measured(time_, {**NOTHING, "waiting": waiting}))
    assert scaling.sizes[0].causes["waiting"] == 20


def test_text_page_and_plot_say_the_same():
    scaling = made({1: [1_000_000], 2: [600_000, 700_000]}, exposed={2: 65_000})
    text = str(scaling)
    page = scaling._repr_html_().replace("\u00a0", " ")
    for word in ("1.00 s", "600 ms – 700 ms", "1.54 ×", "77 %", "exposed communication"):
        assert word in text and word in page, word
    chart = scaling.chart()
    speeds, causes = chart["hconcat"]
    assert [row["speed-up"] for row in speeds["data"]["values"]] == [1.0, 1.5385]
    assert speeds["data"]["values"][1]["low"] < 1.5385 < speeds["data"]["values"][1]["high"]
    exposed = [r for r in causes["data"]["values"] if r["part"] == "exposed communication"]
    assert [row["seconds"] for row in exposed] == [0, 0.065]
    assert json.loads(json.dumps(chart)) == chart
    assert "background" in chart and chart["background"] is None, "light and dark"
    assert bundle(scaling, ["<b>"])["text/html"].endswith("&lt;b&gt;</div>")
    assert "no run has finished yet" in bundle(Scaling())["text/plain"]


def test_a_time_is_from_the_last_start_to_the_last_end():
    info = RunInfo("r", "c", 2, 0, [RankInfo(r, "h", 1, "cpu") for r in range(2)])

    def rank(number: int, begin: int, end: int) -> list[bytes]:
        spans = {"cat": "cell", "define": [{"name": "x"}, {"name": "y"}], "name": [0, 1]}
        half = (end - begin) // 2
        return [
            event_line("status", number, 0, 0, state="running"),
            event_line("spans", number, 1, end, **spans, start=[begin, half], dur=[half, half]),
            event_line("spans", number, 2, end, cat="wait", **{"from": 2}, define=[{"name": "w"}],
                       name=[2], start=[begin], dur=[150]),
            event_line("status", number, 3, end + 50, state="ok"),
        ]  # fmt: skip

    lines = [*rank(0, 100, 900), *rank(1, 300, 1000)]
    found = Measured.of(Timeline.of(info, lines))
    assert found.time == 700
    # Causes are means over ranks. Rank 0's wait ends before the last start and does not count;
    # rank 1's 150 µs are exposed.
    assert found.causes == {**NOTHING, "exposed": 75, "idle": 50, "compute": 575}
    assert sum(found.causes.values()) == found.time
    assert Measured.of(Timeline.of(info, [])).time == 0


def test_rank_counts_are_parsed_or_refused_with_the_cause():
    assert parse_rank_counts("1,2,4", 4) == [1, 2, 4]
    assert parse_rank_counts("4, 1,1", 4) == [4, 1]
    assert parse_rank_counts("", 6) == [1, 2, 4, 6]
    few = "8 ranks requested, but the cluster has 4"
    for text, told in (("1,8", few), ("0", "'0' is not a number of ranks"), ("a", "'a'")):
        with pytest.raises(ValueError, match=told):
            parse_rank_counts(text, 4)


def test_a_smaller_world_gets_matching_environment_variables():
    config = {"cluster": {"worker": ["a", "b", "c", "d"]}, "task": {"type": "worker", "index": 1}}
    whole = {"LOCAL_WORLD_SIZE": "4", "TF_CONFIG": json.dumps(config)}
    world = World(rank=1, size=2, whole=4, local_rank=1)
    env = environment(world, whole)
    assert {env["WORLD_SIZE"], env["HOROVOD_SIZE"], env["HOROVOD_LOCAL_SIZE"]} == {"2"}
    assert env["HOROVOD_CROSS_SIZE"] == env["GROUP_WORLD_SIZE"] == "1"
    assert json.loads(env["TF_CONFIG"])["cluster"]["worker"] == ["a", "b"]


@pytest.mark.parametrize(
    ("counts", "size", "expected"),  # of each rank: LOCAL_WORLD_SIZE, HOROVOD_CROSS_SIZE
    [
        ("2,2", 3, ["2 2", "2 1", "1 2"]),
        ("4,4", 5, ["4 2", "4 1", "4 1", "4 1", "1 2"]),
        ("4,2", 5, ["4 2", "4 1", "4 1", "4 1", "1 2"]),
        ("1,3,3", 3, ["1 2", "2 2", "2 1"]),
    ],
)
def test_the_environment_counts_ranks_per_node_in_partly_filled_nodes(
    counts: str, size: int, expected: list[str]
):
    found = []
    for rank in range(size):
        world = World(rank=rank, size=size, whole=sum(map(int, counts.split(","))))
        env = environment(world, {"RANKROOM_NODE_RANKS": counts})
        assert env["LOCAL_WORLD_SIZE"] == env["HOROVOD_LOCAL_SIZE"]
        assert env["GROUP_WORLD_SIZE"] == "2"
        found.append(f"{env['LOCAL_WORLD_SIZE']} {env['HOROVOD_CROSS_SIZE']}")
    assert found == expected


# -- a smaller world on real ranks

WORLD = """
import os
import horovod.torch as hvd, torch, torch.distributed as dist
hvd.init()
dist.is_initialized() or dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
[size, hvd.size(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), total.item(),
 dist.get_world_size(), os.environ["WORLD_SIZE"], os.environ["HOROVOD_SIZE"]]
"""


def of(n: int) -> list[Any]:
    return [n, n, float(n), float(n), n, str(n), str(n)]


def smaller(cluster: Cluster, source: str, ranks: int = 1) -> Any:
    run = cluster.run(source, range(ranks), own=True)
    assert run.wait(60)
    return run


def value(run: Any, rank: int = 0) -> Any:
    assert run.state == "done", failure(run)
    return eval(run.results[rank])


@pytest.mark.cluster
class TestSmallerWorld:
    def test_a_smaller_world_has_only_its_ranks_and_the_full_one_returns(self, frameworks: Cluster):
        assert value(smaller(frameworks, WORLD)) == of(1)
        assert value(smaller(frameworks, WORLD)) == of(1)
        assert values(frameworks, WORLD) == [of(2), of(2)]
        # Again, after all ranks have initialized the frameworks together.
        assert value(smaller(frameworks, WORLD)) == of(1)
        assert frameworks.rejoin()
        again = WORLD.replace("hvd.init()", "").replace("dist.is_initialized() or dist.init", "#")
        assert values(frameworks, again) == [of(2), of(2)]

    def test_initialized_frameworks_follow_into_the_smaller_world(self, frameworks: Cluster):
        assert values(frameworks, WORLD) == [of(2), of(2)]
        cell = WORLD.replace("hvd.init()", "").replace("dist.is_initialized() or dist.init", "#")
        assert value(smaller(frameworks, cell)) == of(1)
        assert values(frameworks, cell) == [of(2), of(2)]

    def test_a_model_trains_in_either_world(self, frameworks: Cluster):
        values(frameworks, WORLD)
        setup = """
            from torch.nn.parallel import DistributedDataParallel as DDP
            torch.manual_seed(0)
            net = torch.nn.Linear(2, 1)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters())
            ddp = DDP(torch.nn.Linear(2, 1))
        """
        finish(frameworks, setup)
        step = (
            "optimizer.zero_grad(); net(torch.ones(3, 2)).sum().backward(); optimizer.step();"
            "ddp(torch.ones(3, 2)).sum().backward(); hvd.size()"
        )
        assert values(frameworks, step) == [2, 2]
        assert value(smaller(frameworks, step)) == 1
        assert values(frameworks, step) == [2, 2]

    def test_keras_averages_on_all_ranks_what_was_traced_on_one(self, frameworks: Cluster):
        setup = """
            import numpy, keras, horovod.tensorflow.keras as hvd
            hvd.init()
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
            model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                          experimental_run_tf_function=False)
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
            def fit():
                x = numpy.ones((4, 2)) * (rank + 1)
                model.fit(x, x.sum(axis=1), epochs=3, batch_size=4, verbose=0, callbacks=[callback])
                return [each.tolist() for each in model.get_weights()]
            hvd.size()
        """
        assert values(frameworks, setup) == [2, 2]
        value(smaller(frameworks, "fit()"))
        # The callback broadcasts the model again after the first batch; then all ranks average.
        first, second = values(frameworks, "fit()")
        assert first == second

    def test_each_world_has_its_own_process_sets(self, frameworks: Cluster):
        values(frameworks, WORLD)
        make = "mine = [hvd.add_process_set([each]) for each in range(size)][rank]; 0"
        add = "hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine).item()"
        values(frameworks, make)
        whole = "everybody = hvd.add_process_set(list(range(size))); everybody.process_set_id"
        assert value(smaller(frameworks, whole)) == 0
        assert values(frameworks, add) == [1.0, 1.0]

    def test_a_failure_in_a_smaller_world_restores_the_full_one(self, frameworks: Cluster):
        run = smaller(frameworks, WORLD + "\n1 / 0")
        assert run.state == "failed" and run.info.failure.ename == "ZeroDivisionError"
        assert values(frameworks, WORLD) == [of(2), of(2)]

    def test_the_users_own_size_is_not_touched(self, frameworks: Cluster):
        finish(frameworks, "size = 17")
        assert value(smaller(frameworks, "size")) == 17
        finish(frameworks, "size = 2")

    def test_only_the_first_ranks_can_be_a_world(self, frameworks: Cluster):
        with pytest.raises(UsageError, match="ranks 0, 1, …"):
            frameworks.run("1", [1], own=True)

    @pytest.mark.thorough
    def test_tensorflow_counts_the_same_ranks(self, frameworks: Cluster):
        cell = """
import json, os
import tensorflow as tf, horovod.tensorflow as hvd_tf
hvd_tf.init()

@tf.function
def total():
    return hvd_tf.allreduce(tf.ones(1), op=hvd_tf.Sum)

[hvd_tf.size(), float(total()[0]), len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])]
"""
        assert values(frameworks, cell) == [[2, 2.0, 2]] * 2
        assert value(smaller(frameworks, cell)) == [1, 1.0, 1]
        assert values(frameworks, cell) == [[2, 2.0, 2]] * 2


# -- the magic


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A notebook's kernel with a cluster of four ranks."""
    home = tmp_path_factory.mktemp("home")
    started = Kernel(**{**os.environ, "RANKROOM_HOME": str(home)})
    started.run("%load_ext rankroom")
    assert "4 ranks" in started.run("%cluster start --ranks 4").stdout
    yield started
    started.run("%cluster stop")
    started.close()


def python(kernel: Kernel, expression: str) -> Any:
    return eval(kernel.run(expression).text)


@pytest.mark.cluster
class TestMagic:
    def test_scaling_measures_one_two_and_four_ranks(self, kernel: Kernel):
        cell = (
            "import time\nimport horovod.torch as hvd, torch\nhvd.init()\n"
            "time.sleep(0.4 / size)\nhvd.allreduce(torch.ones(4)); assert hvd.size() == size"
        )
        shown = kernel.run(f"%%scaling 1,2,4 --repeat 2 -o scaled\n{cell}")
        assert shown.error == ""
        rows = python(kernel, "scaled.rows()")
        assert [(row["ranks"], row["repeats"]) for row in rows] == [(1, 2), (2, 2), (4, 2)]
        for row, least in zip(rows, (0.4, 0.2, 0.1), strict=True):
            assert least <= row["time"], row
        table, plot = shown.outputs
        assert "ranks" in table["text/plain"] and "<table" in table["text/html"]
        assert "…" not in table["text/plain"], "nothing more to come"
        assert plot[VEGA]["hconcat"][0]["data"]["values"][2]["ranks"] == 4
        assert "ranks 0–3: (4, 4)" in kernel.run("%distributed size, hvd.size()").text

    def test_weak_scaling_on_two_of_four_ranks(self, kernel: Kernel):
        cell = "import time\nfor _ in range(size): time.sleep(0.1)"
        shown = kernel.run(f"%%scaling 1,2 --weak --repeat 1 --no-warm-up -o weak\n{cell}")
        assert shown.error == ""
        rows = python(kernel, "weak.rows()")
        assert all(row["time"] >= 0.1 * row["ranks"] for row in rows)
        alone, both = (row["time"] for row in rows)
        assert rows[1]["efficiency"] == pytest.approx(alone / both, rel=0.01)
        assert "ranks 0–3: 4" in kernel.run("%distributed size").text

    def test_a_failure_keeps_finished_rows_and_names_the_failed_rank(self, kernel: Kernel):
        cell = "assert size < 2 or rank == 0, 'too many'"
        shown = kernel.run(f"%%scaling 1,2 --repeat 1 -o some\n{cell}")
        assert "rank 1 failed first (cell line 1): AssertionError: too many" in shown.error
        assert [row["ranks"] for row in python(kernel, "some.rows()")] == [1]
        assert shown.run["state"] == "failed"
        assert "ranks 0–3: 4" in kernel.run("%distributed size").text

    def test_an_interrupt_keeps_the_finished_rows(self, kernel: Kernel, tmp_path: Path):
        there = tmp_path / "there"
        cell = (
            "import pathlib, time\n"
            f"if size > 1: pathlib.Path({str(there)!r} + str(rank)).touch(); time.sleep(600)"
        )

        def interrupt() -> None:
            # On both ranks, as an interrupt ends only a cell that has begun.
            while not all(there.with_name(f"there{rank}").exists() for rank in (0, 1)):
                time.sleep(0.02)
            kernel.interrupt()

        threading.Thread(target=interrupt, daemon=True).start()
        shown = kernel.run(f"%%scaling 1,2 --repeat 1 --no-warm-up -o half\n{cell}")
        assert "interrupted; the ranks' variables are kept" in shown.error
        assert [row["ranks"] for row in python(kernel, "half.rows()")] == [1]
        assert "ranks 0–3: 4" in kernel.run("%distributed size").text

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("1,8", "8 ranks requested, but the cluster has 4: `%cluster resize 8` restarts it"),
            ("1,x", "'x' is not a number of ranks"),
            ("--strong", "unknown option '--strong'"),
            ("--repeat 0", "--repeat 0: must be at least 1"),
            ("-o 1a", "-o 1a: not a variable name"),
        ],
    )
    def test_invalid_options_are_refused_with_the_cause(self, kernel: Kernel, line: str, told: str):
        assert told in kernel.run(f"%%scaling {line}\n1").error
