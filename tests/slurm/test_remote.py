"""A cluster on a site, used from a notebook on a laptop through the site's login node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labs import jobs, profile
from machines import Machines
from numbered import GATED
from remote import Laptop, files, until_nothing_runs


@pytest.fixture(scope="module")
def laptop(machines: Machines) -> Iterator[Laptop]:
    """A laptop with a cluster of two ranks on two nodes, and a kernel that uses it."""
    with Laptop(machines, {"test": profile(nodes=2, ranks_per_node=1)}) as made:
        made.do("from kernel import Kernel\nkernel = Kernel(**os.environ)")
        made.do('kernel.run("%load_ext rankroom")')
        said = made.do('vars(kernel.run("%cluster start --site test --name far", 240))', 300)
        assert not said["error"], said
        assert "ready in" in said["stdout"]
        yield made
        made.do("kernel.close()")


def cell(laptop: Laptop, source: str, seconds: float = 60) -> dict:
    """What a cell of the notebook shows."""
    return laptop.do(f"vars(kernel.run({source!r}, {seconds}))", seconds + 60)


def values(laptop: Laptop, source: str) -> dict:
    """The results of a cell on all ranks, as text."""
    cell(laptop, f"%%distributed -o run\n{source}")
    found = cell(laptop, "import json; print(json.dumps(run.results))")["stdout"]
    return laptop.do(f"json.loads({found!r})")


def test_the_cluster_magic_shows_nodes_job_and_rank_states(laptop: Laptop):
    shown = cell(laptop, "%cluster")["stdout"]
    assert "far: 2 ranks on c1, c2 (CPU), job " in shown
    assert "on test, 0:0" in shown
    assert "rank 1  c2  cpu" in shown and "ready" in shown
    assert jobs(laptop.machines) != []


def test_a_cell_runs_on_the_site_and_its_record_is_copied_to_the_laptop(laptop: Laptop):
    shown = cell(laptop, "%%distributed -o run\nprint('line of', rank)\nrank * 10")
    assert not shown["error"]
    text = "\n".join(str(each.get("text/plain")) for each in shown["outputs"])
    assert "0 │ line of 0" in text and "1 │ line of 1" in text
    assert "2 ranks · done" in text
    same = laptop.do(
        """
found = {}
store = Store()
run = store.load(store.ids()[0])
for name in ("run.json", "source.py", "events.jsonl"):
    found[name] = (store.paths(run.id).folder / name).read_text()
[run.id, found]
"""
    )
    there = laptop.machines.home("alice") / ".local/share/rankroom/runs" / same[0]
    assert same[1] == {name: (there / name).read_text() for name in same[1]}


def test_ranks_on_two_nodes_complete_an_all_reduce(laptop: Laptop):
    source = """
import torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
x = torch.ones(1) * (rank + 1)
dist.all_reduce(x)
int(x)"""
    assert values(laptop, source) == {"0": "3", "1": "3"}


def test_variables_are_pushed_to_and_pulled_from_ranks(laptop: Laptop):
    cell(laptop, "import numpy as np\nx = np.arange(3)\ndef twice(a): return 2 * a")
    assert "pushed" in cell(laptop, "%ranks push x twice")["stdout"]
    assert values(laptop, "y = twice(x) + rank\nint(y.sum())") == {"0": "6", "1": "9"}
    cell(laptop, "%ranks pull y")
    assert cell(laptop, "print({r: v.tolist() for r, v in y.items()})")["stdout"].strip() == (
        "{0: [0, 2, 4], 1: [1, 3, 5]}"
    )
    assert "NameError" in cell(laptop, "%ranks pull nowhere")["error"]


def test_an_error_names_its_rank_and_line_and_the_ranks_stay_usable(laptop: Laptop):
    shown = cell(laptop, "%%distributed\nif rank == 1:\n    1 / 0")
    assert "rank 1 failed first (cell line 2): ZeroDivisionError" in shown["error"]
    assert values(laptop, "rank") == {"0": "0", "1": "1"}


def test_a_timeout_and_an_interrupt_end_a_cell(laptop: Laptop):
    shown = cell(laptop, "%%distributed --timeout 1\nimport time\ntime.sleep(300)")
    assert "stopped after --timeout 1 s" in shown["error"]
    source = "%%distributed\nimport time\nprint('begun', flush=True)\ntime.sleep(300)"
    laptop.do(
        f"""
import threading
from numbered import written
def press():
    deadline = time.monotonic() + 60
    while written(Store(), Store().ids()[0], 1) != "begun\\n" and time.monotonic() < deadline:
        time.sleep(0.05)
    kernel.interrupt()
shown = kernel.run({source!r}, 90, lambda: threading.Thread(target=press).start())
"""
    )
    assert "interrupted" in laptop.do("shown.error")
    assert values(laptop, "rank") == {"0": "0", "1": "1"}


def test_a_detached_run_can_be_awaited_listed_profiled_and_inspected(laptop: Laptop):
    gate = laptop.machines.home("alice") / "gate"
    waits = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)\n'slept'"
    cell(laptop, f"%%distributed --detach -o run\n{waits}")
    said = cell(laptop, "print(run.state, run.running, run.wait(0.1))")["stdout"].strip()
    assert said == "running [0, 1] False"
    gate.touch()
    said = cell(laptop, "print(run.wait(60), run.state, run.results)")["stdout"].strip()
    assert said == "True done {0: \"'slept'\", 1: \"'slept'\"}"
    gate.unlink()
    assert "import os, time" in cell(laptop, "%runs")["stdout"]
    said = cell(laptop, "print([row.rank for row in run.profile().ranks])")["stdout"].strip()
    assert said == "[0, 1]"
    assert "MainThread" in cell(laptop, "%cluster stacks --ranks 1")["stdout"]
    assert ": ready" in cell(laptop, "%cluster log")["stdout"]


def test_a_rank_is_restarted_on_request_and_after_a_sigkill(laptop: Laptop):
    cell(laptop, "%%distributed\nkept = rank")
    assert "rank 1 restarted" in cell(laptop, "%cluster restart --ranks 1", 120)["stdout"]
    assert values(laptop, "'kept' in globals()") == {"0": "True", "1": "False"}
    shown = cell(laptop, "%%distributed\nimport os\nif rank == 1:\n    os.kill(os.getpid(), 9)")
    assert "rank 1 was killed by SIGKILL" in shown["error"]
    assert "rank 1 was killed by SIGKILL" in cell(laptop, "%%distributed\n1")["error"]
    cell(laptop, "%cluster restart --ranks 1", 120)
    assert values(laptop, "rank") == {"0": "0", "1": "1"}


def test_a_restarted_kernel_attaches_while_its_run_continues(laptop: Laptop):
    gate = laptop.machines.home("alice") / "gate"
    cell(laptop, "%%distributed --detach" + GATED.format(gate="/home/alice/gate"))
    run = laptop.do("Store().ids()[0]")
    laptop.do('kernel.restart()\nkernel.run("%load_ext rankroom")')
    shown = cell(laptop, "%cluster")["stdout"]
    assert "running: far (2 ranks). `%cluster attach` connects" in shown
    assert f"the run {run} is still running" in cell(laptop, "%cluster attach")["stdout"]
    assert "is busy with a run" in cell(laptop, "%%distributed\n1")["error"]
    gate.touch()
    laptop.until(f"Store().load({run!r}).state != 'running'")
    laptop.do("from numbered import assert_numbered")
    counts = laptop.do(f"[assert_numbered(Store(), {run!r}, rank) for rank in (0, 1)]")
    assert min(counts) >= 50
    assert laptop.do(f"Store().load({run!r}).state") == "done"
    gate.unlink()


def test_stop_leaves_nothing_but_records(laptop: Laptop):
    assert cell(laptop, "%cluster stop", 120)["stdout"].strip() == "far stopped"
    until_nothing_runs(laptop.machines)
    assert files(laptop.machines) == []
    assert laptop.agents() == []
    assert list(laptop.clusters.iterdir()) == []
    assert "no cluster yet" in cell(laptop, "%cluster")["stdout"]
