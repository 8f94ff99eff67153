"""Large batches: how far the learning rate can be raised, and how."""

from __future__ import annotations

import itertools

from rankroom.course.exercise import Learner, Wrong, exercise
from rankroom.text.rank_ranges import count_ranks


@exercise("large.1", answer="scaled", ranks=1)
def linear_scaling(learner: Learner) -> None:
    """Check the linear scaling rule for the learning rate."""
    ask = learner.function("scaled")
    for _ in range(3):
        rate = round(learner.chance.uniform(0.01, 0.2), 3)
        batch = learner.chance.choice([16, 32, 256])
        larger = batch * learner.chance.randrange(2, 40) + batch // 2
        wanted = rate * larger / batch
        found = ask(rate, batch, larger)
        if not isinstance(found, (int, float)) or abs(found - wanted) > 1e-6:
            raise Wrong(
                f"a rate of {rate} for batches of {batch} becomes {wanted:g} for {larger}: you "
                f"have {found!r}"
            )


@exercise("large.2", answer="warmed_up", ranks=1)
def warm_up(learner: Learner) -> None:
    """Check a learning rate that rises during warm-up, and then stays constant."""
    ask = learner.function("warmed_up")
    rate = round(learner.chance.uniform(0.1, 1), 2)
    steps = learner.chance.randrange(20, 60)
    found = [ask(step, rate, steps) for step in range(2 * steps)]
    for step, each in enumerate(found):
        if not isinstance(each, (int, float)):
            raise Wrong(
                f"warmed_up({step}, {rate}, {steps}) gives {each!r}, and should give a number"
            )
    if any(each > rate * (1 + 1e-9) for each in found):
        raise Wrong(f"the rate goes up to {max(found):g}, beyond {rate}")
    if found[0] > rate / steps * 1.01:
        raise Wrong(
            f"step 0 learns with {found[0]:g}: with {steps} steps of warm-up it should be "
            f"{rate / steps:g} at most"
        )
    if any(b < a - 1e-12 for a, b in itertools.pairwise(found)):
        raise Wrong("the rate falls at some step: it should rise, then stay constant")
    if abs(found[steps] - rate) > 1e-9 or abs(found[-1] - rate) > 1e-9:
        raise Wrong(f"after {steps} steps it should be {rate}, and is {found[steps]:g}")
    middle = found[steps // 2]
    if not 0.4 * rate < middle < 0.6 * rate:
        raise Wrong(f"half-way it should be near {rate / 2:g}, and is {middle:g}")
    climbs = [b - a for a, b in itertools.pairwise(found[:steps])]
    if max(climbs) - min(climbs) > 1e-6 * rate:
        raise Wrong(
            f"it does not climb evenly: one step of the warm-up adds {min(climbs):g}, and another "
            f"one {max(climbs):g}"
        )


@exercise("large.3", answer="steps_for", ranks=1)
def steps(learner: Learner) -> None:
    """Check the steps per epoch: counted with a loader, then computed for larger numbers."""
    import torch

    ask = learner.function("steps_for")
    for ranks in (1, learner.chance.randrange(2, 6)):
        images, batch = learner.chance.randrange(300, 900), learner.chance.choice([16, 32])
        dataset = torch.arange(images)
        sampler = torch.utils.data.DistributedSampler(dataset, ranks, 0, drop_last=True)
        loader = torch.utils.data.DataLoader(dataset, batch, sampler=sampler, drop_last=True)
        counted, found = len(list(loader)), ask(images, batch, ranks)
        if found != counted:
            raise Wrong(
                f"a loader for {images} images on {count_ranks(ranks)}, in batches of {batch} on "
                f"each, has given {counted} whole batches, and you predict {found!r}"
            )
    for _ in range(4):
        images = learner.chance.randrange(1_000, 2_000_000)
        batch, ranks = learner.chance.choice([16, 32, 64]), learner.chance.choice([1, 2, 8, 256])
        wanted = images // (batch * ranks)
        found = ask(images, batch, ranks)
        if found != wanted:
            raise Wrong(
                f"{images} images on {count_ranks(ranks)}, in batches of {batch} on each: {wanted} "
                f"whole steps, and you have {found!r}"
            )
