"""The loops of real runs: a slow rank's cost per step agrees with what the cell measured."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from cells import failure, finish
from rankroom.cluster.local import Cluster
from rankroom.run.run import Run
from spanned import names, spans

pytestmark = pytest.mark.cluster

STEPS = 40
SLOW = 2
# A typical first cell: imports, the model, and a loop in which one rank loads its data slowly.
TRAIN = f"""
import time
import torch, horovod.torch as hvd
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

class Data(Dataset):
    def __len__(self):
        return {STEPS} * 8
    def __getitem__(self, at):
        return torch.randn(32)

loads = []
batches = iter(DataLoader(Data(), batch_size=8))
for step in range({STEPS}):
    begin = time.perf_counter()
    with span("load"):
        batch = next(batches)
        time.sleep(0.05 if rank == {SLOW} else 0.01)
    loads.append(time.perf_counter() - begin)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
loads
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four ranks that have imported nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        made = Cluster.local(ranks=4)
        try:
            yield made
        finally:
            made.stop()


def ran(cluster: Cluster, source: str) -> Run:
    run = finish(cluster, source, 240)
    assert run.state == "done", failure(run)
    return run


@pytest.mark.thorough
def test_the_diagnosis_is_of_the_loop_and_not_of_a_cell_diluted_by_its_imports(four: Cluster):
    run = ran(four, TRAIN)
    profile = run.profile()
    loop, phase = profile.loop, profile.phase("loop")
    assert loop and phase, profile
    assert (loop.name, loop.last, loop.fewest, loop.most) == ("SGD.step", STEPS, STEPS, STEPS)
    assert loop.first <= 4 and loop.steps >= 30, profile
    assert loop.named == profile.named == [SLOW], profile
    words = profile.diagnosis
    assert words.startswith(f"{loop.title}: rank {SLOW} arrives last in "), words
    assert " of a step; it spends " in words and " in load, " in words, words
    assert "before that: " in words and "of it imports" in words, words
    # Measured by the cell: how much longer the slow rank loaded than the median of the others.
    loads = {rank: ast.literal_eval(text)[loop.first - 1 :] for rank, text in run.results.items()}
    typical = sorted(sum(times) for rank, times in loads.items() if rank != SLOW)[1]
    cost = (sum(loads[SLOW]) - typical) * 1e6 * loop.steps / len(loads[SLOW])
    assert phase.stragglers[0].rank == SLOW
    assert phase.stragglers[0].cost == pytest.approx(cost, rel=0.2)
    of_step, of_run = phase.stragglers[0].cost / phase.wall, cost / profile.wall
    assert of_step > 0.4 and of_step > 1.3 * of_run, profile
    assert loop.samples == pytest.approx(4 * 8 * loop.rate, rel=0.1)
    assert sum(each.wall for each in profile.phases) == profile.wall
    startup = profile.phase("startup")
    assert startup and startup.imports > 0.1 * startup.wall


def test_two_loops_and_a_validation_between_steps_are_distinguished(four: Cluster):
    ran(four, "import time, torch, horovod.torch as hvd\nhvd.init()\nones = torch.ones(100)")
    source = """\
for step in range(30):
    time.sleep(0.01 + 0.02 * (rank == 1))
    hvd.allreduce(ones)
    if step % 10 == 9:
        time.sleep(0.4)
for step in range(8):
    time.sleep(0.02)
    hvd.allgather(ones)
"""
    profile = ran(four, source).profile()
    loop = profile.loop
    assert loop, profile
    assert (loop.name, loop.line, loop.last) == ("allreduce", 1, 30), profile
    assert loop.apart >= 2 and loop.named == [1], profile
    assert loop.time < 28 * 0.1e6, profile
    assert [(other.name, other.line) for other in loop.others] == [("allgather", 6)]


def test_setting_horovod_up_again_is_not_the_cells_communication(four: Cluster):
    ran(four, "import torch, horovod.torch as hvd\nhvd.init()\nones = torch.ones(100)")
    failed = finish(four, "if rank == 1:\n    raise ValueError('mine')\nhvd.allreduce(ones)")
    assert failed.state == "failed"
    again = ran(four, "hvd.allreduce(ones, name='again')")
    profile = again.profile()
    assert [(kind.op, kind.calls) for kind in profile.kinds] == [("allreduce", 1)]
    for row in profile.ranks:
        assert names(again, row.rank, "setup") == ["Rankroom sets frameworks up again"]
        [setup] = spans(again, row.rank, "setup")
        [statement] = spans(again, row.rank, "cell")
        assert setup.end <= statement.start
        assert setup.end - setup.start <= row.idle
        # Nothing before the statement counts as communication.
        assert row.waiting + row.exposed <= statement.end - statement.start
    plain = ran(four, "hvd.allreduce(ones, name='again')")
    assert all(not spans(plain, rank, "setup") for rank in range(4))
