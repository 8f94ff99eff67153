"""A rank dies in `hvd.elastic.run`: it is restarted, and training goes on from the last commit."""

import subprocess
import sys
import time
from textwrap import dedent

import pytest

from cells import failure, finish, log, states, values
from rankroom.cluster.local import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.fault("{id}", "it comes back, and training goes on from the last commit"),
]

BEGIN = """
import os, pathlib, signal, threading, time
import horovod.torch as hvd, torch
from horovod.common.exceptions import HorovodInternalError
{first}
hvd.init()
torch.manual_seed(rank)

def once(name):
    # A rank that has died runs the cell again.
    flag = pathlib.Path({folder!r}, name)
    return not flag.exists() and not flag.touch()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
seen = []

class State(hvd.elastic.TorchState):
    def restore(self):
        super().restore()
        {restored}

@hvd.elastic.run
def train(state):
    while state.batch < 8:
        seen.append(state.batch)
        {trouble}
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        hvd.allreduce(torch.ones(1))  # a collective without a name
        state.batch += 1
        if state.batch % 2 == 0:
            state.commit()
    return state.batch

state = State(model, optimizer, batch=0)
"""
SHOWN = """
weights = [round(float(each), 5) for each in model.state_dict().values()]
[train(state), seen, [round(float(each), 5) for each in model.state_dict().values()]]
"""


def training(folder, trouble="pass", first="", restored="pass"):
    """A cell of eight training steps, with a commit after every second one."""
    names = {"folder": str(folder), "trouble": trouble, "first": first, "restored": restored}
    return BEGIN.format(**names) + SHOWN


def trained(cluster, source):
    """The steps that each rank took, and the run; all ranks must end with the expected weights."""
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    ranks = [eval(run.results[rank]) for rank in sorted(run.results)]
    assert [each[0] for each in ranks] == [8] * cluster.size
    assert all(each[2] == WEIGHTS for each in ranks), [each[2] for each in ranks]
    return [each[1] for each in ranks], run


def went_on(run):
    """The record's notes about ranks that rejoined."""
    return [
        note
        for note in run.info.notes
        if "it has rejoined and continues from the last commit" in note
    ]


WEIGHTS: list[float] = []  # after training without a failure


def cluster_of(ranks, factory, **how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(factory.mktemp("home")))
        made = Cluster.local(ranks=ranks, preload="torch,horovod.torch", **how)
        try:
            source = training(factory.mktemp("flags"))
            run = finish(made, source)
            assert run.state == "done", failure(run)
            WEIGHTS[:] = eval(run.results[0])[2]
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    yield from cluster_of(2, tmp_path_factory, auto_restart=True)


@pytest.fixture(scope="module")
def other_pair(tmp_path_factory):
    """A second pair, as a rank is restarted automatically only three times a minute."""
    yield from cluster_of(2, tmp_path_factory, auto_restart=True)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    yield from cluster_of(3, tmp_path_factory, auto_restart=True)


@pytest.fixture(scope="module")
def other_three(tmp_path_factory):
    yield from cluster_of(3, tmp_path_factory, auto_restart=True)


@pytest.fixture
def new_three(tmp_path_factory):
    yield from cluster_of(3, tmp_path_factory, auto_restart=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two ranks that are restarted only on request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_ELASTIC_SECONDS", "4")
        yield from cluster_of(2, tmp_path_factory)


@pytest.mark.parametrize(
    ("rank", "step", "goes_on"), [(1, 5, 4), (0, 5, 4), (1, 0, 0)],
    ids=["rank 1 dies", "rank 0 dies", "a rank dies before the first commit"],
)  # fmt: skip
def test_elastic_training_continues_from_the_last_commit(pair, tmp_path, rank, step, goes_on):
    die = f"rank == {rank} and state.batch == {step} and once('flag') and die()"
    before = {each.rank: each.pid for each in pair.ranks}
    seen, run = trained(pair, training(tmp_path, die))
    assert seen[1 - rank] == [*range(step + 1), *range(goes_on, 8)]
    assert seen[rank] == [*range(goes_on, 8)]
    assert pair.ranks[rank].pid != before[rank]
    assert pair.ranks[1 - rank].pid == before[1 - rank]
    # The record has the events of both processes, and says what happened.
    said = log(run, rank, "stderr")
    assert f"rank {rank} was killed by SIGKILL" in said
    assert f"it has rejoined and continues from the last commit (batch={goes_on})" in said
    [note] = went_on(run)
    assert note.endswith(f"(batch={goes_on})")
    assert run.info.ranks[rank].pid == pair.ranks[rank].pid
    events = [each for each in run.events if each["rank"] == rank]
    assert [e["kind"] for e in events if e.get("state") == "running"] == ["status"] * 2
    all_events = [each["seq"] for each in pair.store.events(run.id) if each["rank"] == rank]
    assert all_events == list(range(len(all_events)))
    # The profile counts the rank as idle while it was away.
    profile = run.profile()
    assert profile.ranks[rank].idle > 0
    # In the next cell, Horovod still works, and no note mentions a restart.
    after = finish(pair, "hvd.allreduce(torch.ones(1), op=hvd.Sum).item()")
    assert set(after.results.values()) == {"2.0"}
    assert after.info.notes == []


@pytest.mark.thorough
def test_collectives_are_matched_after_a_rank_has_rejoined(three, tmp_path):
    from rankroom.analysis.collectives import Collectives

    die = "time.sleep(0.4); rank == 2 and state.batch == 5 and once('flag') and die()"
    _, run = trained(three, training(tmp_path, die))
    gradients = [
        each for each in Collectives(run.timeline) if each.key.tensor.endswith("weight")
        and each.key.op == "allreduce"
    ]  # fmt: skip
    whole = [each.ranks for each in gradients if len(each.ranks) == 3]
    assert len(whole) > 4  # the rank's last second before its death is not recorded
    last = gradients[-4:]
    assert [each.ranks for each in last] == [[0, 1, 2]] * 4
    assert max(each.spread for each in last) < 5_000_000


def test_two_ranks_die_in_turn(pair, tmp_path):
    die = (
        "rank == 0 and state.batch == 3 and once('first') and die(); "
        "rank == 1 and state.batch == 5 and once('second') and die()"
    )
    seen, run = trained(pair, training(tmp_path, die))
    assert seen == [[2, 3, 4, 5, 4, 5, 6, 7], [4, 5, 6, 7]]
    assert len(went_on(run)) == 2


def test_a_rejoined_rank_without_a_commit_of_its_own_supplies_the_state(three, tmp_path):
    # Rank 1 has made no commit of its own when rank 0 dies.
    die = (
        "rank == 1 and state.batch == 2 and once('first') and die(); "
        "rank == 0 and state.batch == 3 and "
        f"pathlib.Path({str(tmp_path)!r}, 'first').exists() and once('second') and die()"
    )
    seen, _ = trained(three, training(tmp_path, die))
    assert seen[0] == [2, 3, 4, 5, 6, 7] and seen[1] == [2, 3, 2, 3, 4, 5, 6, 7]


def test_a_second_rank_dies_while_the_first_is_restarted(three, tmp_path):
    die = "rank == 1 and state.batch == 5 and once('first') and die()"
    soon = "rank == 2 and once('second') and threading.Timer(0.2, die).start()"
    seen, run = trained(three, training(tmp_path, die, restored=soon))
    assert seen[0] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert len(went_on(run)) == 2


@pytest.mark.thorough
def test_a_restarted_rank_dies_again_before_it_rejoins(other_three, tmp_path):
    again = (
        f"first, second = pathlib.Path({str(tmp_path)!r}, 'first'), "
        f"pathlib.Path({str(tmp_path)!r}, 'again')\n"
        "if rank == 0 and first.exists() and not second.exists():\n"
        "    second.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    die = "rank == 0 and state.batch == 5 and once('first') and die()"
    seen, _ = trained(other_three, training(tmp_path, die, first=again))
    assert seen[1] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]


@pytest.mark.thorough
def test_a_restarted_rank_dies_while_horovod_connects_it(other_pair, tmp_path):
    first, second = (f"pathlib.Path({str(tmp_path)!r}, {name!r})" for name in ("flag", "again"))
    dies = (
        f"if rank == 1 and {first}.exists() and not {second}.exists():\n"
        f"    from rankroom.rank.world import World\n    {second}.touch()\n"
        "    World.open_store = lambda *about: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    die = "rank == 1 and state.batch == 5 and once('flag') and die()"
    seen, run = trained(other_pair, training(tmp_path, die, first=dies))
    assert seen[0] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert run.duration < 25  # Horovod alone would try to connect for 30 s


@pytest.mark.thorough
def test_a_second_rank_dies_while_horovod_connects_and_another_is_late(other_three, tmp_path):
    # All three ranks have met. Rank 2 dies as it connects, 3 s before rank 0 asks for addresses.
    ways = """
        from rankroom.rank.world import World
        meet = World.open_store
        def late(*about):
            World.open_store = meet
            time.sleep(3)
            return meet(*about)
        def prepare():
            if rank == 2 and once("second"):
                World.open_store = lambda *about: die()
            elif rank == 0 and once("late"):
                World.open_store = late
    """
    die = "rank == 1 and state.batch == 5 and once('first') and die()"
    seen, run = trained(
        other_three, training(tmp_path, die, first=dedent(ways), restored="prepare()")
    )
    assert seen[0] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert len(went_on(run)) == 2
    assert run.duration < 25  # Horovod alone would try to connect for 30 s


@pytest.mark.thorough
def test_a_second_rank_dies_after_announcing_its_address_to_horovod(new_three, tmp_path):
    # Of two ranks, the one with the lower address listens; rank 2 announces the highest of all.
    ways = """
        import socket, urllib.error, urllib.request
        from rankroom.rank.world import World
        meet = World.open_store
        def known(*about):
            meet(*about)
            where = [os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{part}"] for part in ("ADDR", "PORT")]
            store = "http://{}:{}/global/".format(*where)
            while True:
                try:
                    others = urllib.request.urlopen(store + "1").read()
                    break
                except urllib.error.HTTPError:  # rank 1 is not there yet
                    pass
            here = socket.inet_aton("127.0.0.1")
            assert here in others
            mine = others.replace(here, b"\\xff" * 4)
            urllib.request.urlopen(urllib.request.Request(store + "2", mine, method="PUT"))
            die()
        def prepare():
            if rank == 2 and once("second"):
                World.open_store = known
    """
    die = "rank == 1 and state.batch == 5 and once('first') and die()"
    seen, run = trained(
        new_three, training(tmp_path, die, first=dedent(ways), restored="prepare()")
    )
    assert seen[0] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert len(went_on(run)) == 2
    assert run.duration < 25  # Horovod alone would listen for 30 s


@pytest.mark.thorough
def test_a_rank_that_dies_after_every_restart_stays_down(tmp_path, home):
    cluster = Cluster.local(ranks=2, auto_restart=True, preload="torch,horovod.torch")
    try:
        flag = f"pathlib.Path({str(tmp_path)!r}, 'flag')"
        first = f"if rank == 1 and {flag}.exists(): os.kill(os.getpid(), signal.SIGKILL)"
        die = "rank == 1 and state.batch == 5 and once('flag') and die()"
        run = finish(cluster, training(tmp_path, die, first))
        assert states(run) == {0: "released", 1: "lost"}
        words = "it was restarted 3 times within 60 s, so it stays down"
        assert words in failure(run)
        cluster.restart([1])
        assert values(cluster, "rank") == [0, 1]
    finally:
        cluster.stop()


def test_a_restarted_rank_lacks_variables_of_earlier_cells(other_pair, tmp_path):
    finish(other_pair, "limit = 5")
    die = "rank == 1 and state.batch == limit and once('flag') and die()"
    run = finish(other_pair, training(tmp_path, die))
    assert states(run)[1] == "error"
    assert failure(run) == "rank 1: NameError: name 'limit' is not defined"
    assert any("this cell must define everything it needs" in note for note in run.info.notes)


# -- Keras

KERAS = """
import os, pathlib, signal
import horovod.tensorflow.keras as hvd, keras, numpy as np
from horovod.tensorflow.keras import elastic
hvd.init()
keras.utils.set_random_seed(rank)
x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
model.compile(optimizer=optimizer, loss="mse")
model.optimizer.build(model.trainable_variables)
epochs = []

class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        epochs.append(state.epoch)
        flag = pathlib.Path({folder!r}, "flag")
        if rank == {rank} and state.epoch == 2 and not flag.exists() and not flag.touch():
            os.kill(os.getpid(), signal.SIGKILL)

@elastic.run
def train(state):
    told = [elastic.UpdateEpochStateCallback(state), elastic.CommitStateCallback(state)]
    model.fit(x, y, batch_size=4, epochs=4 - state.epoch, verbose=0, callbacks=[Dies(), *told])
    return state.epoch

state = elastic.KerasState(model, epoch=0)
[train(state), epochs, [np.asarray(each).round(4).tolist() for each in model.variables]]
"""


@pytest.fixture(scope="module")
def keras_pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKROOM_HOME", str(tmp_path_factory.mktemp("home")))
        preload = "tensorflow,keras,horovod.tensorflow"
        made = Cluster.local(ranks=2, auto_restart=True, preload=preload)
        try:
            yield made
        finally:
            made.stop()


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_elastic_keras_training_continues_from_the_last_commit(keras_pair, tmp_path, rank):
    whole = values(keras_pair, KERAS.format(folder=str(tmp_path), rank=-1))
    ranks = values(keras_pair, KERAS.format(folder=str(tmp_path), rank=rank))
    assert [each[0] for each in ranks] == [4, 4]
    assert ranks[0][2] == ranks[1][2] == whole[0][2]
    assert ranks[rank][1] == [2, 3] and ranks[1 - rank][1] == [0, 1, 2, 2, 3]


# -- without --auto-restart


def test_restarting_a_dead_rank_by_command_resumes_the_training(alone, tmp_path):
    die = "rank == 1 and state.batch == 5 and once('flag') and die()"
    run = alone.run(training(tmp_path, die))
    command = f"rankroom cluster restart {alone.name} --ranks 1"
    until(lambda: f"`{command}` in a terminal" in log(run, 1, "stderr"))
    assert "`%cluster start --auto-restart`" in log(run, 1, "stderr")
    subprocess.run([sys.executable, "-m", *command.split()], check=True)
    assert run.wait(60) and run.state == "done", failure(run)
    assert eval(run.results[0])[1:] == [[0, 1, 2, 3, 4, 5, 4, 5, 6, 7], WEIGHTS]


def test_a_live_rank_can_be_restarted_during_elastic_training(alone, tmp_path):
    run = alone.run(training(tmp_path, "print(f'step {state.batch}'); time.sleep(0.5)"))
    until(lambda: "step 3" in log(run, 0))
    alone.restart([0])
    assert run.wait(60) and run.state == "done", failure(run)
    assert went_on(run)[0].startswith("rank 0 was restarted; it has rejoined")


def test_a_dead_rank_that_is_not_restarted_in_time_fails_the_run(alone, tmp_path):
    die = "rank == 1 and state.batch == 5 and once('flag') and die()"
    begun = time.monotonic()
    run = finish(alone, training(tmp_path, die))
    assert 4 < time.monotonic() - begun < 20
    assert states(run) == {0: "released", 1: "lost"}
    assert "was not restarted within 4 s" in failure(run)
    assert "`%cluster start --auto-restart`" in failure(run)
    alone.restart([1])
    # The imports for the new process's first optimizer must not keep the other rank waiting.
    made = "import torch; torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())"
    assert finish(alone, made, ranks=[1]).state == "done"
    assert trained(alone, training(tmp_path))[1].info.notes == []


@pytest.mark.parametrize("how", ["interrupt", "release"])
def test_a_rank_waiting_for_a_dead_one_can_be_interrupted_or_released(alone, tmp_path, how):
    die = "rank == 1 and state.batch == 5 and once('flag') and die()"
    run = alone.run(training(tmp_path, die))
    until(lambda: "was killed" in log(run, 1, "stderr"))
    begun = time.monotonic()
    getattr(alone, how)()
    assert run.wait(10)
    assert time.monotonic() - begun < 3.5
    assert states(run) == {0: {"interrupt": "interrupted"}.get(how, "released"), 1: "lost"}
    alone.restart([1])
    assert values(alone, "rank") == [0, 1]


@pytest.mark.thorough
def test_a_cluster_is_stopped_while_a_rank_waits_for_a_dead_one(home, tmp_path, monkeypatch):
    monkeypatch.delenv("RANKROOM_ELASTIC_SECONDS", raising=False)
    cluster = Cluster.local(ranks=2, preload="torch,horovod.torch")
    try:
        die = "rank == 1 and state.batch == 5 and once('flag') and die()"
        run = cluster.run(training(tmp_path, die))
        until(lambda: "was killed" in log(run, 1, "stderr"))
    finally:
        cluster.stop()
    assert run.state == "failed"
    assert "ended with its cluster: it was stopped" in failure(run)


def until(met, seconds=60):
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)
