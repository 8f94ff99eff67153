"""Feeding data to all ranks: random draws, balanced shards, and equal numbers of steps."""

from __future__ import annotations

from rankroom.course.exercise import Learner, Wrong, exercise


@exercise("feeding.1", answer="seen", ranks=1)
def coverage(learner: Learner) -> None:
    """Check the predicted share of images seen by random draws against actual draws."""
    ask = learner.function("seen")
    for ranks in (2, 4, 8):  # with 2, draws without replacement would differ most
        # Enough images that the share drawn deviates by far less than 0.02 from the expected one.
        images = learner.chance.randrange(10_000, 30_000)
        each = int(images * learner.chance.uniform(0.5, 1.5)) // ranks
        draws = (learner.chance.randrange(images) for _ in range(ranks * each))
        wanted = len(set(draws)) / images
        found = ask(images, ranks, each)
        if not isinstance(found, (int, float)) or abs(found - wanted) > 0.02:
            raise Wrong(
                f"{ranks} ranks have drawn {each} of {images} images each, with replacement, and "
                f"seen {wanted:.1%} of them: you predict {found!r}"
            )


@exercise("feeding.2", answer="files_of", ranks=1)
def files(learner: Learner) -> None:
    """Check that files of different sizes are assigned so that all ranks read about as much."""
    ask = learner.function("files_of")
    for ranks in (2, learner.chance.randrange(3, 6)) * 4:
        sizes = {
            f"part-{number:03}": learner.chance.randrange(1, 1000) ** 2
            for number in range(8 * ranks)
        }
        # In unsorted order, the largest file comes last.
        last, largest = max(sizes), max(sizes, key=lambda name: sizes[name])
        sizes[last], sizes[largest] = sizes[largest], sizes[last]
        parts = [list(ask(dict(sizes), rank, ranks)) for rank in range(ranks)]
        together = [name for part in parts for name in part]
        if sorted(together) != sorted(sizes):
            raise Wrong(
                f"{len(sizes)} files for {ranks} ranks: {len(set(together))} different ones are "
                f"read, {len(together)} in all"
            )
        loads = [sum(sizes[name] for name in part) for part in parts]
        fair = sum(sizes.values()) / ranks
        if max(loads) > 1.1 * fair:
            raise Wrong(
                f"the fullest of {ranks} ranks reads {max(loads) / fair:.2f} times its fair share: "
                "the others wait for it. Assign the large files first, each to the rank with the "
                "least so far"
            )


@exercise("feeding.3", answer="common_steps")
def steps(learner: Learner) -> None:
    """Check that all ranks take as many steps as the rank with the fewest batches."""
    ask = learner.function("common_steps")
    for _ in range(2):
        counts = [learner.chance.randrange(5, 50) for _ in range(learner.size)]
        found = ask(counts[learner.rank])
        if type(found) is not int or found != min(counts):
            hint = "" if type(found) is int else ": return an int"
            raise Wrong(
                f"the ranks have {', '.join(map(str, counts))} batches: all of them should make "
                f"{min(counts)} steps, and rank {learner.rank} makes {found!r}{hint}"
            )
