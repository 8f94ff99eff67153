"""The value of a cell's expression on one rank, as far as the source tells."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Value(NamedTuple):  # created by the hundred, and four times as fast as a dataclass
    """One expression's value on one rank.

    `differs` says that it depends on the rank. An unknown value has a `text` instead, which is
    equal on ranks that have equal values. `thing` is what a name stands for: a dotted name as a
    string, a function or class of the cell (its syntax node), or an Object.
    """

    known: bool = False
    value: Any = None
    differs: bool = False
    text: str = ""
    thing: Any = None


@dataclass(frozen=True)
class Object:
    """An object that the cell visibly makes: an instance of its own class, or one whose methods
    are collectives."""

    kind: str
    made_of: ast.ClassDef | None = None


OPTIMIZER = Object("optimizer")  # a hvd.DistributedOptimizer: its step waits for all ranks
TAPE = Object("tape")  # a hvd.DistributedGradientTape: its gradients wait, too
KERAS = Object("Keras model")  # compiled with such an optimizer: its training waits for all ranks
MODEL = Object("model")  # a DistributedDataParallel: a backward pass through it waits, too
LOSS = Object("loss")  # an output of such a model, or computed from one
GUESS = Object("guess")  # a comparison of the rank with an unknown value
UNKNOWN = Value()


def negated(value: Value) -> Value:
    """Return `not value`."""
    if value.known:
        return Value(True, not value.value, value.differs, thing=value.thing)
    return Value(differs=value.differs, text=opposite(value.text))


def opposite(text: str) -> str:
    """Return the text of the negation of `text`; negating twice gives `text` again."""
    return text.removeprefix("not ") if text.startswith("not ") else f"not {text}"


def joined(values: list[Value], all_of: bool) -> Value:
    """Return `and` (`all_of`) or `or` of values, of which the last may have decided the result."""
    differs = any(each.differs for each in values)
    left = []
    for each in values:
        if not each.known or not each.differs:
            # Also a known value that is the same on all ranks: on each, it is left undecided.
            left.append(each.text)
        elif bool(each.value) != all_of:
            return Value(True, each.value, True, thing=each.thing)
    if not left:
        return Value(True, all_of, differs)
    text = (" and " if all_of else " or ").join(left)
    # In parentheses: `not x and y` is not the opposite of `x and y`.
    return Value(differs=differs, text=f"({text})" if len(left) > 1 else text)


def calculated(operation: type, left: Value, right: Value) -> Any:
    """Return the result of a binary operation or a comparison of known values; None if it cannot be
    computed."""
    function = _OPERATIONS.get(operation)
    if function is None:
        return None
    try:
        # Of small numbers only: 10 ** 10 ** 10 must not be computed here.
        if operation in (ast.Pow, ast.LShift, ast.Mult) and not (
            _small(left.value) and _small(right.value)
        ):
            return None
        return function(left.value, right.value)
    except Exception:
        # What fails here may fail on the rank, too, but such errors are not checked for.
        return None


def _small(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 1000


_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.BitXor: operator.xor, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
# Operators that are expressed as the negation of another one.
NEGATED_OPERATORS: dict[type, type] = {
    ast.NotEq: ast.Eq, ast.NotIn: ast.In, ast.IsNot: ast.Is, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
}  # fmt: skip
