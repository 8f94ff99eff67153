"""16-bit numbers, and batches that are processed in pieces."""

from __future__ import annotations

import math
from typing import Any

from rankroom.course.exercise import Learner, Wrong, exercise

LARGEST_FLOAT16 = 65504.0  # the largest finite float16


@exercise("precision.1", answer="sum_of", ranks=1)
def sums(learner: Learner) -> None:
    """Check that a sum of many small numbers does not stop growing."""
    import torch

    ask = learner.function("sum_of")
    chance = torch.Generator().manual_seed(learner.seed)
    for _ in range(12):  # a sum rounded to bfloat16 is close enough every other time
        values = torch.rand(4000, generator=chance).bfloat16()
        wanted = values.double().sum().item()
        found = float(ask(values.clone()))
        if abs(found - wanted) > 1e-3 * wanted:
            hint = ": a sum in bfloat16 has two to three digits, however it was added up"
            if found < 0.5 * wanted:
                hint = ": it stops growing where the sum has no bits left for the next"
            raise Wrong(
                f"{len(values)} numbers of bfloat16 add up to {wanted:.2f}, and sum_of gives "
                f"{found:.2f}{hint}"
            )


@exercise("precision.2", answer="accumulate", ranks=1)
def accumulation(learner: Learner) -> None:
    """Check that the gradient of a batch is accumulated from pieces of it."""
    import torch

    accumulate = learner.function("accumulate")
    torch.manual_seed(learner.seed)
    model = torch.nn.Linear(6, 3)
    count = learner.chance.choice([3, 5, 6])  # not 4, as many as a piece has rows
    x, y = torch.randn(4 * count, 6), torch.randint(3, (4 * count,))
    whole = torch.autograd.grad(
        torch.nn.functional.cross_entropy(model(x), y), list(model.parameters())
    )
    held = RowsHeld(model)
    accumulate(model, list(zip(x.split(4), y.split(4), strict=True)))
    held.demand(4, "piece")
    for each, wanted in zip(model.parameters(), whole, strict=True):
        if each.grad is None:
            raise Wrong("there is no gradient: call backward() on the loss of each piece")
        if torch.allclose(each.grad, count * wanted, rtol=1e-3, atol=1e-5):
            raise Wrong(
                f"the gradient is {count} times as large as that of the whole batch: the loss of "
                "each piece is a mean, but the sum of these means is not"
            )
        if not torch.allclose(each.grad, wanted, rtol=1e-3, atol=1e-5):
            raise Wrong("the gradient is not that of the whole batch")


class RowsHeld:
    """Counts the rows that a module holds at a time, from forward to backward pass."""

    def __init__(self, module: Any) -> None:
        self._now = self._most = 0
        self._hook = module.register_forward_hook(self._forward)

    def demand(self, most: int, what: str) -> None:
        """Raise Wrong if more than `most` rows, those of one `what`, were held at a time. Stops
        counting."""
        self._hook.remove()
        if self._most > most:
            raise Wrong(
                f"{self._most} rows are held at a time, and a {what} has {most}: all of them do "
                f"not fit into memory, so call backward() on each {what} before the next"
            )

    def _forward(self, module: Any, inputs: Any, output: Any) -> None:
        if output.requires_grad:
            rows = len(output)
            self._now += rows
            self._most = max(self._most, self._now)
            output.register_hook(lambda gradient: self._backward(rows))

    def _backward(self, rows: int) -> None:
        self._now -= rows


@exercise("precision.3", answer="scale_for", ranks=1)
def scale(learner: Learner) -> None:
    """Check the largest power of two that scales gradients without overflow in float16."""
    import torch

    ask = learner.function("scale_for")
    for _ in range(6):
        largest = 10 ** learner.chance.uniform(-7, 3)
        found = ask(largest)
        if not isinstance(found, (int, float)) or found <= 0:
            raise Wrong(f"scale_for({largest:.3g}) gives {found!r}, and should give a number")
        if not math.log2(found).is_integer():
            raise Wrong(f"{found:g} is not a power of two: only those change no digit of a number")
        if torch.tensor(largest * found, dtype=torch.float64).half().isinf():
            raise Wrong(f"{largest:.3g} × {found:g} overflows float16: it becomes inf")
        if 2 * found * largest <= LARGEST_FLOAT16:
            raise Wrong(f"for {largest:.3g}, {2 * found:g} would do as well: you have {found:g}")
