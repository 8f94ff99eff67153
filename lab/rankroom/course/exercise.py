"""An exercise: which answer it expects of the reader's cell, and how the ranks check it.

Each exercise is a function that runs on every rank after the reader's cell and raises Wrong if the
answer is wrong; `course/exercises` has one module per topic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rankroom.errors import RankroomError, UsageError

DEFAULT_TIME_LIMIT_S = 30.0


class Wrong(RankroomError):
    """What is wrong with an answer, in a sentence for its author."""


class Learner:
    """The reader's variables on one rank, and random numbers that cannot be known in advance.

    `chance` gives the same numbers on all ranks, `own` different ones on each.
    """

    def __init__(self, variables: Mapping[str, Any], rank: int, size: int, seed: int) -> None:
        self.variables = variables
        self.rank = rank
        self.size = size
        self.seed = seed
        self.chance = random.Random(seed)
        self.own = random.Random(f"{seed}/{rank}")

    @property
    def device(self) -> str:
        """This rank's device: `cpu` or `cuda:1`. NCCL accepts only tensors on a GPU."""
        return str(self.variables.get("device", "cpu"))

    def get(self, name: str) -> Any:
        """Return the variable of that name. Raises Wrong if the cell has not set it."""
        if name not in self.variables:
            raise Wrong(f"there is no `{name}`: your cell should define it")
        value = self.variables[name]
        if value is None or value is ...:
            raise Wrong(f"`{name}` is {value!r}: put your answer there")
        return value

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function of that name. Raises Wrong if it is not callable."""
        value = self.get(name)
        if not callable(value):
            raise Wrong(f"`{name}` is {type(value).__name__}, and should be a function")
        found: Callable[..., Any] = value
        return found


@dataclass(frozen=True)
class Exercise:
    """`run` examines the answer on one rank. `answer` is the name of the variable or function that
    it examines, which `check(name, answer)` sets; `limit` is in seconds; `ranks` is the smallest
    number of ranks it works on. With a `script`, the reader's cell is a script: it is written into
    the file of that name, and the variable `answer` holds its text."""

    name: str
    run: Callable[[Learner], None]
    answer: str
    limit: float = DEFAULT_TIME_LIMIT_S
    ranks: int = 2
    script: str = ""


TOPICS = (
    "hello", "collectives", "ring", "horovod", "tf", "keras", "ddp", "deepspeed", "tfd", "large",
    "scaling", "straggler", "feeding", "model", "batch", "shared", "script",
    "checkpoint", "precision", "capstone",
)  # fmt: skip
REGISTERED_EXERCISES: dict[str, Exercise] = {}


def exercise(
    name: str, answer: str, limit: float = DEFAULT_TIME_LIMIT_S, ranks: int = 2, script: str = ""
) -> Callable[[Callable[[Learner], None]], Callable[[Learner], None]]:
    """Register a function as the exercise `TOPIC.NUMBER`."""

    def take(run: Callable[[Learner], None]) -> Callable[[Learner], None]:
        REGISTERED_EXERCISES[name] = Exercise(name, run, answer, limit, ranks, script)
        return run

    return take


def find(name: str) -> Exercise:
    """Return the exercise of that name. Raises UsageError with the valid topics or names."""
    topic = name.partition(".")[0]
    if topic not in TOPICS:
        raise UsageError(f"there is no exercise {name!r}; the topics are {', '.join(TOPICS)}")
    import_module(f"rankroom.course.exercises.{topic}_exercises")
    if name not in REGISTERED_EXERCISES:
        there = ", ".join(
            sorted(each for each in REGISTERED_EXERCISES if each.startswith(f"{topic}."))
        )
        raise UsageError(f"there is no exercise {name!r}; there are {there}")
    return REGISTERED_EXERCISES[name]


def all_exercises() -> dict[str, Exercise]:
    """Return all exercises by name, in the order of the course."""
    for topic in TOPICS:
        import_module(f"rankroom.course.exercises.{topic}_exercises")
    order = {topic: place for place, topic in enumerate(TOPICS)}
    names = sorted(REGISTERED_EXERCISES, key=lambda name: (order[name.partition(".")[0]], name))
    return {name: REGISTERED_EXERCISES[name] for name in names}
