"""Checks of exercises as ranks run them, and the verdict on an answer as a whole."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankroom.course import slow_images, trial
from rankroom.course.examine import Right, examine
from rankroom.course.exercise import Exercise, Learner, Wrong, find
from rankroom.course.exercises import capstone_exercises, ring_exercises
from rankroom.course.verdict import judge
from rankroom.errors import UsageError
from rankroom.record.model import Hang, Place
from record_makers import make_run

SEED = 7


def ring(name: str, answer: Callable[[list[Any], Any], None], length: int) -> None:
    """Check one half of a ring all-reduce on rank 0 of 2 alone: `answer` gets the chunks, and what
    both ranks should end with."""
    whole = ring_exercises._rows(Learner({}, 0, 2, SEED), 2 * length).sum(0).chunk(2)
    exercise = find(name)
    variables = {exercise.answer: lambda chunks: answer(chunks, whole)}
    exercise.run(Learner(variables, 0, 2, SEED))


@pytest.mark.parametrize(("name", "length", "place"), [("ring.2", 3, 1), ("ring.3", 2, 0)])
def test_ring_chunks_must_be_changed_in_place(name: str, length: int, place: int):
    ring(name, lambda chunks, whole: chunks[place].copy_(whole[place]), length)
    with pytest.raises(
        Wrong, match=rf"chunks\[{place}\] was replaced by another tensor: .* or copy_"
    ):
        ring(name, lambda chunks, whole: chunks.__setitem__(place, whole[place]), length)


def test_rank_and_size_must_match_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_RANK", "1")
    monkeypatch.setenv("RANKROOM_SIZE", "2")
    variables = {"rank": 1, "size": 2, "speaks": lambda rank, size: rank == size - 1}
    assert isinstance(examine("hello.2", variables, SEED), Right)
    with pytest.raises(Wrong, match=r"`rank` is 3 instead of 1: .* rank = int\(os\.environ\[\"R"):
        examine("hello.2", variables | {"rank": 3}, SEED)
    with pytest.raises(Wrong, match=r"`size` is \[1, 2\] instead of 2: .*\"WORLD_SIZE\""):
        examine("hello.2", variables | {"size": [1, 2]}, SEED)
    del variables["rank"]
    with pytest.raises(Wrong, match="`rank` is None instead of 1"):
        examine("hello.2", variables, SEED)


@pytest.mark.parametrize(
    ("cores", "ranks", "wanted"), [(2, 4, 0.35), (128, 4, 0.7), (4, 4, 0.7), (1, 8, 0.3)]
)
def test_the_required_efficiency_depends_on_cores_per_rank(cores: int, ranks: int, wanted: float):
    assert capstone_exercises._wanted(cores, ranks) == pytest.approx(wanted)


RESUMES = """
def train(epoch, last, path):
    begin = int(path.read_text()) if path.exists() else 0
    for number in range(begin, last):
        epoch(number)
        fresh = path.with_suffix(".new")
        fresh.write_text(str(number + 1))
        {put}
"""


def resumes(put: str) -> None:
    """Check an answer to batch.3 that puts its checkpoint in place by the code `put`."""
    variables: dict[str, Any] = {}
    exec(RESUMES.format(put=put), variables)
    find("batch.3").run(Learner(variables, 0, 1, SEED))


def test_checkpoint_replacement_is_detected_without_hard_links(monkeypatch: pytest.MonkeyPatch):
    def refuse(*paths: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    resumes("fresh.replace(path)")
    with pytest.raises(Wrong, match="was written over the one before"):
        resumes("path.write_text(fresh.read_text())")


class Called:
    def __call__(self, rank: int, size: int) -> bool:
        return True


@pytest.mark.parametrize(
    "answer", [lambda rank, size: True, functools.partial(max, 1), math.gcd, Called()]
)
def test_an_answer_without_function_source_is_refused(answer: Any):
    with pytest.raises(UsageError, match="write it as a `def`, or use %%check"):
        trial.check("hello.2", answer)


def test_a_function_defined_by_exec_is_refused():
    typed: dict[str, Any] = {}
    exec("def speaks(rank, size):\n    return True", typed)
    with pytest.raises(UsageError, match="write it as a `def`, or use %%check"):
        trial.check("hello.2", typed["speaks"])


class Ranks:
    """A cluster that only records what it is asked to run."""

    size = 2

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[str] = []
        monkeypatch.setattr(trial.AnyCluster, "current", self)

    def run(self, source: str, **options: Any) -> None:
        self.sources.append(source)


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1", "speaks(rank, size)", "# speaks = 1\nfrom speaks import x", "print('speaks = 1')",
    ],
)  # fmt: skip
def test_a_cell_without_the_answer_is_refused(cell: str, monkeypatch: pytest.MonkeyPatch):
    ranks = Ranks(monkeypatch)
    with pytest.raises(UsageError, match="does not define `speaks`, which is the answer that hel"):
        trial.start(find("hello.2"), cell)
    assert not ranks.sources


@pytest.mark.parametrize(
    "cell",
    [
        "def speaks(rank, size): return 1", "speaks = lambda rank, size: 1", "import x as speaks",
        "if size > 1:\n    speaks, other = 1, 2", "from x import *", "import speaks.x",
        "with x as speaks: pass", "exec('speaks = 1')", "for speaks in (1, 2): pass",
        "async def speaks(): pass", "class speaks: pass", "(speaks := 1)",
        "a syntax of newer Pythons", "get_ipython().run_line_magic('time', 'speaks = print')",
    ],
)  # fmt: skip
def test_an_answer_may_be_defined_in_any_way(cell: str, monkeypatch: pytest.MonkeyPatch):
    ranks = Ranks(monkeypatch)
    trial.start(find("hello.2"), cell)
    assert ranks.sources[0].startswith(f"{cell}\n\nfrom rankroom.course.examine import")


def test_a_writefile_cell_is_refused_unless_a_script_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    ranks = Ranks(monkeypatch)
    code = "get_ipython().run_cell_magic('writefile', 'x', 'speaks = 1')"
    with pytest.raises(UsageError, match="a cell with %%writefile cannot be checked"):
        trial.start(find("hello.2"), "\n%%writefile x\nspeaks = 1", code=code)
    trial.start(find("capstone.4"), "%%writefile x")  # the text of a script is not run as a cell
    assert ranks.sources[0].startswith("script = '%%writefile x'\n")


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("hello.1", lambda values, rank, size: 1, "`share` gives something else than is asked for"),
        ("feeding.2", lambda *given: None, "`files_of` gives .*TypeError: "),
        ("script.2", lambda *given: "torchrun 'x", "`command` gives .*ValueError: No closing quot"),
    ],
)
def test_an_unusable_answer_is_reported_by_its_name(
    name: str, answer: Any, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANKROOM_RANK", "0")
    monkeypatch.setenv("RANKROOM_SIZE", "2")
    with pytest.raises(Wrong, match=words):
        examine(name, {find(name).answer: answer, "rank": 0, "size": 2}, SEED)


def test_an_error_raised_by_the_answer_is_passed_on_unchanged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKROOM_RANK", "0")
    monkeypatch.setenv("RANKROOM_SIZE", "2")
    variables: dict[str, Any] = {"rank": 0, "size": 2}
    exec("def share(values, rank, size):\n    return len(values)[rank]", variables)
    with pytest.raises(TypeError, match="not subscriptable"):
        examine("hello.1", variables, SEED)


def test_a_collective_that_all_ranks_have_entered_may_be_slow(quick: Exercise):
    run = Standing("waits", "waits", ends_after=0.4)
    assert run.info.hang is not None
    run.info.hang.places = [Place([0, 1], "waits", "wait", "dist.all_reduce")]
    assert trial.follow(quick, run).passed and not run.was_interrupted
    for ends in ("dist.recv", "dist.isend"):
        run = Standing("waits", "waits")
        run.info.hang.places = [Place([0, 1], "waits", "wait", ends)]
        assert trial.follow(quick, run).state == "hung"


def test_a_check_that_was_interrupted_as_it_began_is_stopped(quick: Exercise):
    run = Standing("busy", "busy")
    assert trial.follow(quick, run, is_interrupted=True).state == "stopped"
    assert run.was_interrupted


def test_the_verdict_says_whether_the_cell_is_still_running():
    said = judge("ring.1", make_run(2, state="running"), "", None)
    assert said.state == "stopped" and "the cell still runs" in said.words
    assert "`%cluster restart` ends it" in said.words
    hung = judge("ring.1", make_run(2, state="running"), "rank 1 is silent", None)
    assert hung.state == "hung" and "rank 1 is silent; the cell still runs" in hung.words
    over = judge("ring.1", make_run(2, state="interrupted"), "rank 1 is silent", None)
    assert over.words.endswith("rank 1 is silent")


class Standing:
    """A run whose ranks stay in `states` until it is interrupted, or ends after `ends_after` s."""

    def __init__(self, *states: str, ends_after: float = 60.0) -> None:
        self.info = make_run(2, state="running")
        places = [Place([n], state, f"place {n}", f"c{n}") for n, state in enumerate(states)]
        self.info.hang = Hang(0, "place 0; place 1", places)
        self.prompts: list[Any] = []
        self.ends_at = time.monotonic() + ends_after
        self.was_interrupted = False

    def wait(self, timeout: float) -> bool:
        if self.info.state == "running" and not self.was_interrupted:
            time.sleep(0.01)
        if self.was_interrupted or time.monotonic() > self.ends_at:
            self.info.state = "interrupted" if self.was_interrupted else "done"
            self.info.end = self.info.start + 60_000_000
        return self.info.state != "running"

    def interrupt(self) -> None:
        self.was_interrupted = True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, home: Path) -> Exercise:
    """An exercise with a limit of 0.5 s; a hang counts as permanent after 0.1 s."""
    monkeypatch.setattr(trial, "PERMANENT_HANG_S", 0.1)
    return dataclasses.replace(find("ring.1"), limit=0.5)


@pytest.mark.parametrize("states", [("waits", "waits"), ("waits", "ended")])
def test_a_wait_that_no_rank_can_end_is_judged_as_hung(quick: Exercise, states: tuple[str, ...]):
    run = Standing(*states)
    said = trial.follow(quick, run)
    assert said.state == "hung" and "forever: place 0; place 1" in said.words


@pytest.mark.parametrize(
    "states",
    [("waits", "busy"), ("waits", "silent"), ("waits", "still"), ("still", "still"),
     ("asks", "waits")],
)  # fmt: skip
def test_a_slow_correct_answer_passes(quick: Exercise, states: tuple[str, ...]):
    run = Standing(*states, ends_after=0.4)
    assert trial.follow(quick, run).passed and not run.was_interrupted


def test_an_exceeded_time_limit_is_reported_with_the_place_of_each_rank(quick: Exercise):
    said = trial.follow(quick, Standing("waits", "busy"))
    assert said.state == "slow"
    assert said.words == "the cell did not end within 0.5 s: place 0; place 1"


def test_time_in_a_debugger_does_not_count_toward_the_limit(quick: Exercise):
    run = Standing("asks", "waits", ends_after=1.0)
    assert trial.follow(quick, run).passed and not run.was_interrupted


def test_an_answer_that_was_debugged_for_long_and_is_stopped_is_not_called_slow(quick: Exercise):
    run = Standing("asks", "waits")
    thought_until = time.monotonic() + 0.7

    def wait(timeout: float) -> bool:
        if time.monotonic() > thought_until and not run.was_interrupted:
            raise KeyboardInterrupt
        return Standing.wait(run, timeout)

    run.wait = wait  # type: ignore[method-assign]
    said = trial.follow(quick, run)
    assert said.state == "stopped" and said.words == "stopped before there was a result"


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("hello.2", lambda rank, size: rank == size, "of 1 rank, none would speak"),
        ("shared.1", lambda *where: None, "you have\nNone"),
        ("script.1", lambda env: (0, 1), "and you have \\(0, 1\\)"),
    ],
)
def test_a_wrong_answer_is_explained(name: str, answer: Callable[..., Any], words: str):
    exercise = find(name)
    with pytest.raises(Wrong, match=words):
        exercise.run(Learner({exercise.answer: answer}, 0, 2, SEED))


def test_an_ndarray_instead_of_a_tensor_is_reported():
    columns = {"columns": lambda row, width: np.zeros((2, width))}
    with pytest.raises(Wrong, match=r"a tensor of shape \[2, 1\], and gives ndarray"):
        find("collectives.3").run(Learner(columns, 0, 2, SEED))


def my_part(count: int, epoch: int, rank: int, size: int) -> list[int]:
    order = list(range(count))
    random.Random(epoch).shuffle(order)
    return order[: count // size * size][rank::size]


def test_the_parts_computed_by_the_ranks_must_be_consistent(
    monkeypatch: pytest.MonkeyPatch,
):
    others = [[-1]]  # what rank 1 has
    hvd = SimpleNamespace(is_initialized=lambda: True, allgather_object=lambda own: [own, *others])
    monkeypatch.setitem(sys.modules, "horovod.torch", hvd)
    find("horovod.2").run(Learner({"my_part": my_part}, 0, 2, SEED))
    others[0] = list(range(20))
    with pytest.raises(Wrong, match="the same on all ranks"):
        find("horovod.2").run(Learner({"my_part": my_part}, 0, 2, SEED))


def test_an_answer_for_a_fixed_number_of_ranks_is_wrong():
    def of_two(count: int, epoch: int, rank: int, size: int) -> list[int]:
        return my_part(count, epoch, rank, 2)

    with pytest.raises(Wrong, match="parts of two ranks"):
        find("horovod.2").run(Learner({"my_part": of_two}, 0, 2, SEED))


@pytest.fixture
def saving(home: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Horovod on rank 1 of a node; the barrier completes the checkpoint that rank 0 saves."""
    import torch

    saved: list[tuple[Any, Path]] = []
    hvd = SimpleNamespace(
        is_initialized=lambda: True,
        barrier=lambda: torch.save(*saved[0]),
        rank=lambda: 1, local_rank=lambda: 1, local_size=lambda: 2,
        cross_rank=lambda: 0, cross_size=lambda: 1, saved=saved,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=hvd))
    monkeypatch.setitem(sys.modules, "horovod.torch", hvd)
    return hvd


def test_an_incomplete_checkpoint_is_wrong(saving: SimpleNamespace):
    def save(state: Any, path: Path) -> None:
        saving.saved.append((state, path))
        path.write_bytes(b"half of what rank 0 writes")

    with pytest.raises(Wrong, match="not there yet, or not all of it"):
        find("horovod.4").run(Learner({"save": save}, 1, 2, SEED))


def test_a_checkpoint_written_by_one_rank_per_node_is_wrong(saving: SimpleNamespace):
    import torch

    def save(state: Any, path: Path) -> None:
        if saving.local_rank() == 0:
            torch.save(state, path)

    with pytest.raises(Wrong, match="rank 1 writes the checkpoint as well"):
        find("horovod.4").run(Learner({"save": save}, 1, 2, SEED))
    assert saving.local_rank() == 1


def test_a_numpy_scalar_is_accepted_as_a_number():
    def replica_loss(errors: list[float], global_batch: int) -> Any:
        return np.array(errors, "float32").sum() / global_batch

    find("tfd.1").run(Learner({"replica_loss": replica_loss}, 0, 2, SEED))
    with pytest.raises(Wrong, match="and should give a number"):
        find("tfd.1").run(Learner({"replica_loss": lambda errors, count: None}, 0, 2, SEED))


@pytest.mark.parametrize("options", ["-L ", "-N -L ", "-fNT -L", "-L localhost:"])
def test_an_ssh_tunnel_is_accepted_with_or_without_a_shell(options: str):
    def tunnel(here: int, node: str, port: int, login: str) -> str:
        return f"ssh {options}{here}:{node}:{port} {login}"

    find("shared.1").run(Learner({"tunnel": tunnel}, 0, 2, SEED))


@pytest.mark.parametrize("size", [8, 16])
def test_accuracy_is_not_asked_for_where_an_epoch_has_few_steps(
    monkeypatch: pytest.MonkeyPatch, size: int
):
    """The ranks have read all images as required, but their network has learned nothing."""
    import torch  # here, so that tests without it need not wait for the import

    share = len(slow_images.SlowImages()) // size
    model = slow_images.network(seed=0)
    seen = []
    for rank in range(size):
        own = range(rank * share, (rank + 1) * share)
        read = [*own, *reversed(own), *reversed(own)]
        seen.append(capstone_exercises._Seen(read, 0, [], [], [], [], 0.0, 0.7))
    hvd = SimpleNamespace(init=lambda: None, local_size=lambda: 1, allgather_object=lambda _: seen)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=hvd))
    monkeypatch.setitem(sys.modules, "horovod.torch", hvd)
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    exercise = find("capstone.2")
    learner = Learner({"images": slow_images.SlowImages(), "model": model}, 0, size, SEED)
    if size == 8:
        with pytest.raises(Wrong, match="of the validation images"):
            exercise.run(learner)
    else:
        exercise.run(learner)
