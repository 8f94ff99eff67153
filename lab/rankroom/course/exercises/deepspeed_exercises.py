"""What DeepSpeed's ZeRO stages leave in each rank's memory."""

from __future__ import annotations

from rankroom.course.exercise import Learner, Wrong, exercise

# Bytes per parameter in mixed precision with Adam: weight and gradient in 16 bits each; master
# weight, momentum and variance in 32 bits each (Rajbhandari et al. 2020, ZeRO).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12


def _bytes(parameters: int, ranks: int, stage: int) -> float:
    weight = WEIGHT_BYTES / ranks if stage >= 3 else WEIGHT_BYTES
    gradient = GRADIENT_BYTES / ranks if stage >= 2 else GRADIENT_BYTES
    state = OPTIMIZER_BYTES / ranks if stage >= 1 else OPTIMIZER_BYTES
    return parameters * (weight + gradient + state)


@exercise("deepspeed.1", answer="bytes_per_rank", ranks=1)
def memory(learner: Learner) -> None:
    """Check the bytes on each rank for each ZeRO stage."""
    ask = learner.function("bytes_per_rank")
    for stage in (0, 1, 2, 3):
        parameters = learner.chance.randrange(10**6, 10**9)
        ranks = learner.chance.choice([2, 4, 8, 64])
        wanted = _bytes(parameters, ranks, stage)
        found = ask(parameters, ranks, stage)
        if not isinstance(found, (int, float)) or abs(found - wanted) > 1e-6 * wanted:
            raise Wrong(
                f"stage {stage}, {parameters:,} parameters on {ranks} ranks take "
                f"{wanted / 1e9:.3f} GB each: you have "
                + (f"{found / 1e9:.3f} GB" if isinstance(found, (int, float)) else repr(found))
            )


@exercise("deepspeed.2", answer="config", ranks=1)
def batches(learner: Learner) -> None:
    """Check that the three batch sizes in a configuration agree."""
    ask = learner.function("config")
    # No value is used twice, so that a constant is right for one case at most.
    micros, counts = learner.chance.sample(range(1, 9), 3), learner.chance.sample(range(2, 6), 3)
    for ranks, micro, steps in zip((2, 4, 8), micros, counts, strict=True):
        wanted = micro * steps * ranks
        found = ask(wanted, micro, ranks)
        if not isinstance(found, dict):
            raise Wrong(f"config gives {found!r}, and should give a dictionary")
        expected = {
            "train_batch_size": wanted,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": steps,
        }
        for key, value in expected.items():
            if key not in found:
                raise Wrong(f"the dictionary has no {key!r}")
            if found[key] != value or not isinstance(found[key], int):
                hint = " (// gives a whole number)" if found[key] == value else ""
                raise Wrong(
                    f"{wanted} samples in a step, {micro} at once, on {ranks} ranks: {key} is "
                    f"{value}, and you have {found[key]!r}{hint}"
                )


@exercise("deepspeed.3", answer="stage_for", ranks=1)
def stage(learner: Learner) -> None:
    """Check the lowest ZeRO stage with which a model fits into memory."""
    ask = learner.function("stage_for")
    parameters, ranks = learner.chance.randrange(10**8, 10**9), learner.chance.choice([4, 8, 16])
    for wanted in (0, 1, 2, 3, None):
        if wanted is None:
            room = 0.9 * _bytes(parameters, ranks, 3)
        else:
            room = 1.01 * _bytes(parameters, ranks, wanted)
        found = ask(parameters, ranks, room)
        if found != wanted or isinstance(found, bool):
            raise Wrong(
                f"{parameters / 1e9:.2f} billion parameters, {ranks} ranks with "
                f"{room / 1e9:.2f} GB each: the lowest stage that fits is {wanted}, and you have "
                f"{found!r}"
            )
