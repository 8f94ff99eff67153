"""TensorFlow's own strategies: what a replica divides its loss by, and what staleness does."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("tfd.1", answer="replica_loss", ranks=1)
def mean_over_the_global_batch(learner: Learner) -> None:
    """Check that the replicas' losses add up to the mean over the global batch."""
    ask = learner.function("replica_loss")
    each = learner.chance.randrange(3, 8)
    for replicas in learner.chance.sample(range(2, 6), 3):  # a constant is right for one at most
        errors = [[learner.chance.random() for _ in range(each)] for _ in range(replicas)]
        wanted = sum(sum(part) for part in errors) / (replicas * each)
        given = [ask(list(part), replicas * each) for part in errors]
        try:
            found = sum(map(float, given))  # a scalar tensor counts as a number
        except (TypeError, ValueError):
            raise Wrong(f"replica_loss gives {given[0]!r}, and should give a number") from None
        if not math.isclose(found, wanted, rel_tol=1e-4):  # allows for float32
            times = found / wanted
            raise Wrong(
                f"{replicas} replicas with {each} errors each: added up, their losses are "
                f"{found:.4f}, {times:.2g} times the mean of all errors, {wanted:.4f}"
            )


@exercise("tfd.2", answer="busiest", ranks=1)
def reduction(learner: Learner) -> None:
    """Check the bytes in and out of the busiest device, for each way to reduce."""
    ask = learner.function("busiest")
    for _ in range(3):
        devices = learner.chance.randrange(3, 17)
        length = devices * learner.chance.randrange(100, 1000)
        for way in ("one device", "ring"):
            counted = _through_the_busiest(way, devices, length)
            found = ask(way, devices, length)
            if not isinstance(found, (int, float)) or abs(found - counted) > 1:
                raise Wrong(
                    f"{way!r}, {devices} devices, {length} bytes: {counted} bytes have gone in and "
                    f"out of the busiest one, and you predict {found!r}"
                )


def _through_the_busiest(way: str, devices: int, length: int) -> int:
    """Return the bytes in and out of the busiest device, counted transfer by transfer."""
    through = [0] * devices

    def send(sender: int, receiver: int, count: int) -> None:
        through[sender] += count
        through[receiver] += count

    if way == "one device":
        for other in range(1, devices):
            send(other, 0, length)
        for other in range(1, devices):
            send(0, other, length)
    else:
        for _ in range(2 * (devices - 1)):  # the steps of both halves
            for device in range(devices):
                send(device, (device + 1) % devices, length // devices)
    return max(through)


@exercise("tfd.4", answer="right_loss", ranks=1)
def logits(learner: Learner) -> None:
    """Check a loss for a network without softmax, and integer labels."""
    import numpy

    loss = learner.function("right_loss")()
    if not callable(loss):
        raise Wrong(f"right_loss() gives {loss!r}, and should give a loss")
    own = numpy.random.default_rng(learner.seed)
    scores, labels = own.normal(0, 4, (12, 10)), own.integers(0, 10, 12)
    wanted = float((numpy.log(numpy.exp(scores).sum(1)) - scores[numpy.arange(12), labels]).mean())
    try:
        found = float(loss(labels, scores.astype("float32")))
    except Exception as error:
        raise Wrong(f"the loss fails for labels {labels[:3].tolist()}, …: {error}"[:300]) from None
    if not math.isclose(found, wanted, rel_tol=1e-3):
        raise Wrong(
            f"for the last layer's scores, and labels, the loss is {wanted:.3f}, and yours gives "
            f"{found:.3f}: it takes the scores for probabilities"
        )


@exercise("tfd.3", answer="stale", ranks=1)
def staleness(learner: Learner) -> None:
    """Check gradient descent with gradients at the weights of some steps ago."""
    ask = learner.function("stale")
    start, rate = learner.chance.uniform(1, 5), learner.chance.uniform(0.05, 0.2)
    steps = learner.chance.randrange(8, 15)
    for delay in (0, 1, learner.chance.randrange(2, 6)):
        weights = [start]
        for step in range(steps):
            old = weights[max(0, step - delay)]
            weights.append(weights[-1] - rate * 2 * old)
        told = ask(lambda w: 2 * w, start, steps, delay, rate)
        found = list(told) if isinstance(told, Iterable) else []
        if len(found) != steps + 1:
            raise Wrong(
                f"stale should give the first weight, and one more after each of {steps} steps: "
                f"{steps + 1} numbers"
            )
        for step, (got, right) in enumerate(zip(found, weights, strict=True)):
            if not math.isclose(got, right, rel_tol=1e-6, abs_tol=1e-9):
                raise Wrong(
                    f"with a delay of {delay}, after {step} steps the weight is {right:.4f}, and "
                    f"you have {got:.4f}"
                )
