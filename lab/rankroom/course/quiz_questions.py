"""The questions of the quiz, each in two forms that ask the same with different words and numbers.

The right answer comes first here; `place` is the position at which it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

LETTERS = "abcd"


@dataclass(frozen=True)
class Form:
    """A question as it is asked before the workshop, or after it."""

    text: str
    answers: tuple[str, str, str, str]  # the right one first
    place: int  # position of the right one as shown, from 0

    @property
    def shown(self) -> list[str]:
        """The answers in the order of their letters."""
        wrong = list(self.answers[1:])
        wrong.insert(self.place, self.answers[0])
        return wrong

    @property
    def right(self) -> str:
        """The letter of the right answer."""
        return LETTERS[self.place]


@dataclass(frozen=True)
class Question:
    """A question. `topic` labels it in the teacher's table; `lesson` is the one that teaches it."""

    topic: str
    lesson: int
    before: Form
    after: Form


QUESTIONS = (
    Question(
        "variables of ranks",
        1,
        Form(
            "Two ranks run `x = rank + 1`. Then rank 1 alone runs `x = 10`. What is `x` on rank 0?",
            ("1", "2", "10", "an error: `x` was changed by another rank"),
            1,
        ),
        Form(
            "Four ranks run `y = 2 * rank`. Then rank 3 alone runs `del y`. What is `y` on rank 2?",
            ("4", "6", "it is gone on all ranks", "None"),
            2,
        ),
    ),
    Question(
        "what an all-reduce gives",
        2,
        Form(
            "Three ranks hold 1, 2 and 6. Which ranks have what after an all-reduce with the sum?",
            (
                "all three have 9",
                "rank 0 has 9",
                "all three have 3",
                "each has a list of all three",
            ),
            3,
        ),
        Form(
            "Four ranks hold 2, 4, 6, 8. Which ranks have what after an all-reduce with the mean?",
            (
                "all four have 5",
                "rank 0 has 5",
                "all four have 20",
                "each still has its own number",
            ),
            0,
        ),
    ),
    Question(
        "why ranks get stuck",
        2,
        Form(
            "A script calls an all-reduce under `if rank == 0:`. What happens on four ranks?",
            (
                "rank 0 waits in it, for ranks that never come",
                "rank 0 gets its own value back",
                "an error is raised on all ranks at once",
                "ranks 1 to 3 run it as well",
            ),
            2,
        ),
        Form(
            "Rank 1 finds an empty file and returns before the barrier. What do the others do?",
            (
                "they wait in the barrier, without an error of their own",
                "they leave the barrier when rank 1 has returned",
                "they get the exception that rank 1 would have got",
                "they skip the barrier, too",
            ),
            1,
        ),
    ),
    Question(
        "what a ring costs",
        3,
        Form(
            "In a ring all-reduce of 100 MB, how much does each of very many ranks send?",
            (
                "nearly 200 MB, and never more",
                "100 MB times the number of ranks",
                "100 MB divided by the number of ranks",
                "100 MB times the logarithm of the number of ranks",
            ),
            0,
        ),
        Form(
            "A ring all-reduce of 60 MB goes from 4 ranks to 400. What each rank sends …",
            (
                "grows from 90 MB to nearly 120 MB",
                "grows a hundredfold",
                "shrinks a hundredfold",
                "stays exactly the same",
            ),
            3,
        ),
    ),
    Question(
        "the same start everywhere",
        4,
        Form(
            "Data-parallel training averages gradients in each step, but the ranks began with "
            "different random weights, and rank 0's were not sent to the others. What is the "
            "result?",
            (
                "the ranks train different networks, without an error",
                "the weights are the same after the first step",
                "the first all-reduce fails",
                "the loss is not a number",
            ),
            3,
        ),
        Form(
            "All ranks have begun with rank 0's weights, and one line is missing: gradients are "
            "not averaged. How can you tell?",
            (
                "by comparing the ranks: loss and weights differ from the first steps on",
                "the optimizer raises an error",
                "the ranks wait for each other forever",
                "all ranks have the same loss, which does not fall",
            ),
            1,
        ),
    ),
    Question(
        "shares of the data",
        4,
        Form(
            "8,000 samples, 4 ranks, batches of 50 on each. How many steps does an epoch have if "
            "every sample is seen once?",
            ("40", "160", "10", "80"),
            2,
        ),
        Form(
            "An epoch of 12,000 samples took 240 steps on one rank. How many does it take on 3 "
            "ranks with the same batch on each, every sample once?",
            ("80", "240", "720", "60"),
            0,
        ),
    ),
    Question(
        "large batches",
        10,
        Form(
            "From 1 rank to 8, with the same batch on each and a learning rate 8 times as high, "
            "the loss explodes within a few steps. What should you try first?",
            (
                "raising the rate step by step in the first epochs",
                "not averaging the gradients",
                "a smaller number of epochs",
                "another random seed on each rank",
            ),
            1,
        ),
        Form(
            "Batches of 32 on one rank, at a rate of 0.01. On 16 ranks with 32 on each, what does "
            "the linear rule say?",
            (
                "a batch of 512, at 0.16 after a warm-up",
                "a batch of 512, at 0.01 / 16",
                "a batch of 32, at 0.16",
                "a batch of 2, at 0.01",
            ),
            3,
        ),
    ),
    Question(
        "speed-up and efficiency",
        11,
        Form(
            "A step takes 80 ms on one rank and, for the same work in all, 25 ms on four. The "
            "efficiency is",
            ("80 %", "31 %", "320 %", "25 %"),
            3,
        ),
        Form(
            "60 s on one rank; 10 s on eight, for the same work in all. The efficiency is",
            ("75 %", "600 %", "17 %", "125 %"),
            1,
        ),
    ),
    Question(
        "who is slow",
        12,
        Form(
            "In every step, ranks 0, 1 and 3 spend 30 ms in the all-reduce, and rank 2 spends 1 "
            "ms. Which rank should you look at?",
            (
                "rank 2: it comes last, and the others wait for it",
                "ranks 0, 1 and 3: their network is slow",
                "rank 0: it collects from all others",
                "none: an all-reduce takes different times",
            ),
            0,
        ),
        Form(
            "One rank of eight waits the least in every collective, and its loader takes 20 ms "
            "longer than the others'. What do the other seven do in these 20 ms?",
            (
                "they wait for it in the next collective",
                "they begin the next step without it",
                "they load its batches for it",
                "they send their gradients a second time",
            ),
            2,
        ),
    ),
    Question(
        "what is written down",
        18,
        Form(
            "Weights alone were saved every epoch. Training that goes on from them behaves "
            "differently at first. What is missing, most of all?",
            (
                "the optimizer's state, and where in the data it was",
                "a file for each rank, as weights differ",
                "the gradients of the last step",
                "the names of the nodes",
            ),
            1,
        ),
        Form(
            "All 16 ranks write the same checkpoint under the same name. What should be done "
            "instead?",
            (
                "one writes under another name, then renames; the others wait for it",
                "each waits a random time before it writes",
                "each writes when its own step is over",
                "all write, and the largest file is kept",
            ),
            0,
        ),
    ),
)
