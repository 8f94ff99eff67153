"""The capstone: a training script is repaired, parallelized, made efficient, resumed, submitted."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.course.script_trial import ScriptTrial, run_job
from rankroom.course.slow_images import SECONDS, SlowImages, network
from rankroom.system import control_groups

EPOCHS = 3
_ACCURACY = 0.8
MAX_RANKS_FOR_ACCURACY = 8  # ranks: with more, an epoch has too few steps to reach any accuracy
TARGET_EFFICIENCY, MIN_EFFICIENCY = (
    0.7,
    0.3,
)  # to reach; lower where ranks share cores, never below MIN_EFFICIENCY
_CLOSE = 1e-3  # largest difference of weights that differ by rounding alone


class _Seen(NamedTuple):
    """What a rank read, the sum of its weights at each read, its final weights, and the gradient of
    its last step if that still exists."""

    images: list[int]
    reads: int
    sums: list[float]
    weights: list[float]
    gradient: list[float]
    validated: list[int]
    seconds: float
    wanted: float  # the efficiency to reach, given the cores of its node


@exercise("capstone.1", answer="model", limit=120, ranks=1)
def mended(learner: Learner) -> None:
    """Check that one process reads all images in each epoch, reshuffled, and the network learns."""
    images = _images(learner, "images")
    read = [number for each in images.reads for number in each.numbers]
    epochs = _epochs(read, len(images), "the script")
    for number, epoch in enumerate(epochs):
        if len(set(epoch)) < len(epoch):
            raise Wrong(
                f"epoch {number} reads {len(epoch)} images, and only {len(set(epoch))} of them "
                "are different"
            )
    _demand_accuracy(learner.get("model"))
    _demand_shuffled(epochs)


@exercise("capstone.2", answer="model", limit=120)
def parallel(learner: Learner) -> None:
    """Check that each rank reads its own shard, and that all train the same network throughout."""
    _compare_ranks(learner)


@exercise("capstone.3", answer="model", limit=180)
def efficient(learner: Learner) -> None:
    """Check that the ranks are busy instead of waiting for the disk or for rank 0."""
    ended = time.monotonic()
    ranks = _compare_ranks(learner, ended)
    there = len(_images(learner, "validation"))
    validated = [number for each in ranks for number in each.validated]
    if len(set(validated)) < there or len(validated) < EPOCHS * there:
        raise Wrong(
            f"{len(validated)} validation images are read, {len(set(validated))} different ones: "
            f"in each of {EPOCHS} epochs it should be all {there}, by all ranks together"
        )
    alone = EPOCHS * SECONDS * (len(_images(learner, "images")) + there)
    took = max(each.seconds for each in ranks)
    found = alone / (took * learner.size)
    wanted = min(each.wanted for each in ranks)
    if found < wanted:
        raise Wrong(
            f"the disk alone takes one process {alone:.1f} s, and {learner.size} ranks took "
            f"{took:.1f} s: an efficiency of {found:.2f}, and it should be {wanted:.2f}. The "
            "Timeline under the cell shows which rank comes last to the all-reduces, and what it "
            "did before"
        )
    # With many ranks on few cores, unbalanced validation may still reach the efficiency.
    most = EPOCHS * -(-there // learner.size)
    fewest = min(len(each.validated) for each in ranks)
    for rank, each in enumerate(ranks):
        if len(each.validated) > max(most, fewest + EPOCHS):
            raise Wrong(
                f"rank {rank} reads {len(each.validated)} validation images: its share of {EPOCHS} "
                f"epochs is {most}, and the others wait for it. The Timeline shows it"
            )


@exercise("capstone.4", answer="script", limit=600, ranks=1, script="capstone.py")
def resumed(learner: Learner) -> None:
    """Check that a script killed in its second epoch resumes, and ends as if it had run through."""
    if learner.rank != 0:
        return  # rank 0 starts the script, on separate ranks
    source = str(learner.get("script"))
    share = len(SlowImages()) // 2
    with TemporaryDirectory() as folder:
        print("on two ranks, from beginning to end", flush=True)
        whole = ScriptTrial(Path(folder) / "whole", source)
        whole.run()
        _demand_ended(whole, "the script fails")
        for rank in (0, 1):
            if whole.read_by(rank) < EPOCHS * share:
                raise Wrong(
                    f"rank {rank} reads {whole.read_by(rank)} images, and its share of "
                    f"{EPOCHS} epochs is {EPOCHS * share}"
                )
        if 1 in whole.saved_by():
            raise Wrong("rank 1 calls torch.save as well: rank 0 alone should")
        trained = _trained(whole)
        _demand_accuracy(trained)
        print("again, and a rank is killed in the second epoch", flush=True)
        cut = ScriptTrial(Path(folder) / "cut", source)
        cut.run(kill=(learner.chance.randrange(2), int(share * learner.chance.uniform(1.3, 1.7))))
        if not cut.was_killed:
            raise Wrong(
                f"the rank to be killed did not reach its second epoch: {cut.output_tail()}"
            )
        cut.delete_notes()
        print("once more, in the same folder", flush=True)
        cut.run()
        _demand_ended(cut, "started again after the kill, it fails")
        again = max(cut.read_by(rank) for rank in (0, 1))
        if again > (EPOCHS - 1) * share:
            raise Wrong(
                f"killed in its second epoch and started again, a rank reads {again} images: the "
                f"{EPOCHS - 1} epochs that were left have {(EPOCHS - 1) * share}"
            )
        pairs = zip(trained.parameters(), _trained(cut).parameters(), strict=True)
        apart = max(float((a - b).detach().abs().max()) for a, b in pairs)
        if apart > _CLOSE:
            raise Wrong(
                f"after the kill and restart, the weights differ by up to {apart:.3f} from those "
                "of an uninterrupted run: which part of the training's state is missing from the "
                "checkpoint?"
            )


@exercise("capstone.5", answer="job", limit=600, ranks=1)
def submitted(learner: Learner) -> None:
    """Check a job script that trains, and restarts the training once if a rank dies."""
    if learner.rank != 0:
        return
    trials = ((0, 1, "ends well"), (1, 2, "dies once"), (9, 2, "always dies"))
    for ranks, (failures, wanted, kind) in zip((2, 1, 2), trials, strict=True):
        text = learner.function("job")(ranks)
        if not isinstance(text, str) or not text.startswith("#!/bin/bash\n"):
            raise Wrong("job gives the text of a script, whose first line is #!/bin/bash")
        # Slurm ignores what comes after the first command.
        header = re.match(r"(?:[ \t]*(?:#.*)?\n)*", text)
        options = header[0] if header else ""
        if not re.search(r"^#SBATCH\s+(--time|-t)[= ]\S+", options, re.MULTILINE):
            raise Wrong(
                "the header lacks #SBATCH --time=…: without it, the partition's default limit "
                "applies"
            )
        with TemporaryDirectory() as folder:
            print(f"the job, with a training that {kind}", flush=True)
            status, started, sizes = run_job(Path(folder), text, failures)
        if started == 0:
            raise Wrong("the job never starts train.py, which is in the folder it runs in")
        if sizes != {ranks}:
            raise Wrong(f"job({ranks}) starts train.py on {max(sizes)} ranks")
        if started != wanted:
            times = {1: "once", 2: "twice"}[wanted]
            raise Wrong(
                f"if the training {kind}, the job should start it {times}, but it started it "
                f"{started} times"
            )
        if (status == 0) != (failures <= 1):
            raise Wrong(f"with a training that {kind}, the job's exit status is {status}")


def _compare_ranks(learner: Learner, ended: float = 0.0) -> list[_Seen]:
    """Return what each rank has read, by rank. Raises Wrong unless the images were sharded over the
    ranks and the weights were the same throughout."""
    import horovod.torch as hvd
    import torch

    images, model = _images(learner, "images"), learner.get("model")
    reads = images.reads
    weights = torch.cat([each.detach().cpu().flatten() for each in model.parameters()])
    gradients = [each.grad.cpu().flatten() for each in model.parameters() if each.grad is not None]
    validation = learner.variables.get("validation")
    checked = validation.reads if isinstance(validation, SlowImages) else []
    hvd.init()
    own = _Seen(
        [number for each in reads for number in each.numbers],
        len(reads),
        [each.weights for each in reads],
        weights.tolist(),
        torch.cat(gradients).tolist() if gradients else [],
        [number for each in checked for number in each.numbers],
        ended - reads[0].begin if reads else 0.0,
        _wanted(control_groups.cores(), hvd.local_size()),
    )
    ranks: list[_Seen] = hvd.allgather_object(own)
    share = len(images) // learner.size
    shares = [
        _epochs(each.images, share, f"rank {rank}", learner.size > 1)
        for rank, each in enumerate(ranks)
    ]
    for number in range(EPOCHS):
        together = {image for mine in shares for image in mine[number]}
        if len(together) < share * learner.size:
            raise Wrong(
                f"in epoch {number} the ranks read {len(together)} different images together, of "
                f"{len(images)}: some are read by two ranks"
            )
    _demand_shuffled(shares[0])
    for rank, each in enumerate(ranks):
        if _apart(each.weights, ranks[0].weights) > _CLOSE:
            raise Wrong(f"ranks 0 and {rank} hold different networks at the end")
        # A prefetching read may see the weights in the middle of a step, and a DataLoader's worker
        # sees those from when it was started.
        pairs = zip(each.sums, ranks[0].sums, strict=False)
        alike = sum(abs(a - b) < _CLOSE for a, b in pairs)
        if alike < each.reads / 2:
            raise Wrong(
                f"ranks 0 and {rank} hold the same network at the end, but not on the way there: "
                f"they had the same weights in {alike} of {each.reads} reads"
            )
        if _apart(each.gradient, ranks[0].gradient) > _CLOSE:
            raise Wrong(
                f"ranks 0 and {rank} hold the same network, but their last gradients differ: they "
                "are not averaged, and what one of them has learnt is thrown away"
            )
    if learner.size <= MAX_RANKS_FOR_ACCURACY:
        _demand_accuracy(model)
    return ranks


def _wanted(cores: int, ranks: int) -> float:
    """Return the efficiency to reach on a node that runs `ranks` ranks on `cores` cores."""
    return max(MIN_EFFICIENCY, TARGET_EFFICIENCY * min(1.0, cores / ranks))


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference between two elements; 0 if either sequence is empty."""
    return max((abs(a - b) for a, b in zip(one, other, strict=False)), default=0.0)


def _images(learner: Learner, name: str) -> SlowImages:
    found = learner.get(name)
    if not isinstance(found, SlowImages):
        raise Wrong(f"`{name}` must be the original SlowImages")
    if any(each.end - each.begin < 0.9 * SECONDS * len(each.numbers) for each in found.reads):
        raise Wrong("the disk was made faster: leave its speed as it was")
    return found


def _epochs(read: Sequence[int], each: int, who: str, padded: bool = False) -> list[list[int]]:
    """Split what was read into epochs of `each` images, or of one more if shards may be `padded` to
    equal lengths. Raises Wrong if it does not come out even."""
    for length in (each, each + 1) if padded else (each,):
        if len(read) == EPOCHS * length:
            return [list(read[n * length : (n + 1) * length]) for n in range(EPOCHS)]
    raise Wrong(
        f"{who} reads {len(read)} images, and {EPOCHS} epochs of its share are {EPOCHS * each}"
    )


def _demand_shuffled(epochs: Sequence[Sequence[int]]) -> None:
    if any(list(each) == list(epochs[0]) for each in epochs[1:]):
        raise Wrong("two epochs read the images in the same order: reshuffle them in each epoch")


def _demand_accuracy(model: Any) -> None:
    """Raise Wrong if the network is not accurate when tested here, whatever the reader's figure."""
    import torch

    from rankroom.course.data import digits

    where = next(model.parameters()).device
    pictures, labels = (torch.from_numpy(each).to(where) for each in digits().test)
    with torch.no_grad():
        guesses = model(pictures).argmax(1)
    found = (guesses == labels).float().mean().item()
    if found < _ACCURACY:
        raise Wrong(
            f"the network gets {found:.0%} of the validation images right, and {_ACCURACY:.0%} can "
            "be reached: look at the loss in Metrics"
        )


def _demand_ended(trial: ScriptTrial, what: str) -> None:
    if trial.status != 0:
        raise Wrong(f"{what}: {trial.output_tail()}")


def _trained(trial: ScriptTrial) -> Any:
    """Return the network with the weights that the script saved in model.pt. Raises Wrong."""
    import torch

    path, model = trial.folder / "model.pt", network()
    if not path.exists():
        raise Wrong("at its end there is no model.pt with model.state_dict()")
    try:
        model.load_state_dict(torch.load(path, weights_only=True))
    except Exception as error:
        raise Wrong(f"model.pt is not a state_dict of this network: {error}"[:300]) from None
    return model
