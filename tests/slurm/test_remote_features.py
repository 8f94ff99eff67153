"""What a notebook does with a site's ranks other than running cells: timelines, scaling, profiles,
resizing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from labs import jobs, profile, until_no_job
from machines import Machines
from remote import Laptop, until_nothing_runs

STEPS = """
import torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
x = torch.ones(1000) * (rank + 1)
for step in range(20):
    dist.all_reduce(x)
"""


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    """A laptop with a cluster of two ranks on two nodes, and a kernel that uses it."""
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as made:
        made.do("from kernel import Kernel\nkernel = Kernel(**os.environ)")
        made.do('kernel.run("%load_ext rankroom")')
        said = made.do('vars(kernel.run("%cluster start --site test --name far", 240))', 300)
        assert "ready in" in said["stdout"], said
        yield made
        made.do("kernel.close()")


def cell(laptop: Laptop, source: str, seconds: float = 180) -> dict[str, Any]:
    """What a cell of the notebook shows."""
    return laptop.do(f"vars(kernel.run({source!r}, {seconds}))", seconds + 60)


def told(laptop: Laptop, expression: str) -> Any:
    """The value of an expression in the notebook."""
    return json.loads(cell(laptop, f"import json; print(json.dumps({expression}))")["stdout"])


def test_a_profile_counts_collectives_and_node_clocks_are_compared(laptop: Laptop):
    cell(laptop, f"%%distributed -o run\n{STEPS}")
    shown = cell(laptop, "print(run.profile())")["stdout"]
    assert re.search(r"^dist all_reduce +20 +4\.0 kB", shown, re.M), shown
    found = laptop.do("[vars(each) for each in Store().load(Store().ids()[0]).ranks]")
    assert [each["host"] for each in found] == ["c1", "c2"]
    # Only clocks of other hosts are compared with that of the supervisor's host, c1.
    assert [bool(each["clock"]) for each in found] == [False, True]


def test_scaling_reports_speedup_and_efficiency_and_keeps_the_cluster(laptop: Laptop):
    shown = cell(laptop, f"%%scaling 1,2 --repeat 1\n{STEPS}", 300)
    assert not shown["error"], shown["error"]
    text = "\n".join(str(each.get("text/plain")) for each in shown["outputs"])
    assert "speed-up" in text.lower() and "efficiency" in text.lower(), text
    cell(laptop, "%%distributed -o run\nsize")
    assert told(laptop, "run.results") == {"0": "2", "1": "2"}


def test_operator_spans_of_all_ranks_reach_the_local_record(laptop: Laptop):
    source = "import torch\ny = torch.ones(200, 200) @ torch.ones(200, 200)"
    shown = cell(laptop, f"%%distributed --profile -o run\n{source}", 300)
    assert not shown["error"], shown["error"]
    cats = laptop.do(
        "events = Store().events(Store().ids()[0])\n"
        "sorted({(each['rank'], each['cat']) for each in events if each['kind'] == 'spans'})"
    )
    assert [0, "op"] in cats and [1, "op"] in cats


def test_a_refused_resize_keeps_the_ranks_and_submits_no_job(laptop: Laptop):
    before = jobs(laptop.machines)
    cell(laptop, "%%distributed\nkept = rank + 10")
    said = cell(laptop, "%cluster resize 64", 120)["error"]
    words = "the ranks stay as they are, and no job is submitted (nodes: 64, ranks: 64):"
    assert words in said and "sbatch" in said, said
    served = laptop.do(
        "from rankroom.cluster import actions\n"
        "refused(lambda: actions.resize('far', {'nodes': '64'}))"
    )
    assert words in served and "sbatch" in served, served
    cell(laptop, "%%distributed -o run\nkept")
    assert told(laptop, "run.results") == {"0": "10", "1": "11"}
    assert jobs(laptop.machines) == before


@pytest.mark.thorough
def test_resize_makes_a_cluster_of_another_size(laptop: Laptop):
    [before] = jobs(laptop.machines)
    said = cell(laptop, "%cluster resize 4", 300)
    assert not said["error"], said
    cell(laptop, "%%distributed -o run\n[rank, size]")
    assert told(laptop, "run.results") == {str(r): f"[{r}, 4]" for r in range(4)}
    until_no_job(laptop.machines, before)
    assert len(jobs(laptop.machines)) == 1
    cell(laptop, "%cluster stop", 120)
    until_nothing_runs(laptop.machines)
