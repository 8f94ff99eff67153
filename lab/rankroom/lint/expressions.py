"""Evaluate a cell's expressions as one rank would, and note the collectives that they call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rankroom.lint import names
from rankroom.lint.values import (
    GUESS,
    KERAS,
    LOSS,
    NEGATED_OPERATORS,
    OPTIMIZER,
    TAPE,
    UNKNOWN,
    Object,
    Value,
    calculated,
    joined,
    negated,
    opposite,
)

MAX_STEPS = 40_000  # syntax nodes evaluated for one rank
MAX_CALL_DEPTH = 6  # nested calls of the cell's own functions that are followed
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class CellTooLong(Exception):
    """The cell is too long to be followed; there are no warnings about it."""


class Leaves(Exception):
    """The rank leaves by raising an exception, or exits."""


@dataclass(frozen=True)
class Condition:
    """A condition that is not the same on all ranks; `depth` calls of the cell's functions enclose
    it."""

    text: str
    line: int
    depth: int
    way_out: str = "out of the if"
    guessed: bool = False  # whether it is a guess on which ranks it holds


@dataclass(frozen=True)
class Call:
    """A collective that the rank reaches: through which calls, and under which conditions."""

    name: str  # the same for its variants
    written: str
    line: int
    column: int
    path: frozenset[str]  # the undecided conditions on which it depends
    call_stack: tuple[tuple[int, str], ...]  # line and name of each enclosing call in the cell
    conditions: tuple[Condition, ...]
    again: bool = False  # in a loop with an unknown number of iterations


class Expressions:
    """One rank's path through expressions; `Walk` adds the statements."""

    def __init__(self, lines: list[bytes], rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.calls: list[Call] = []
        self.names: dict[str, Value] = {}
        self.conditions: tuple[Condition, ...] = ()
        self.path: frozenset[str] = frozenset()
        self.call_stack: tuple[tuple[int, str], ...] = ()
        self.called: set[ast.AST] = set()
        self.is_unsynchronized = False  # inside `with model.no_sync()` and the like
        self.recompiled = False  # a Keras model was compiled again: ranks may train it separately
        self.again = False
        self.may_diverge = False  # whether other ranks may take other paths
        self._lines = lines
        self._steps = 0

    # -- values

    def value(self, node: ast.expr) -> Value:
        """Return the value of `node`, and follow the calls in it."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CellTooLong
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            found: Value = method(node)
            return found
        self._children(node)
        return self._open(node)

    def text(self, node: ast.expr) -> str:
        """Return the source of `node`, on one line."""
        end = node.end_lineno or node.lineno
        if end == node.lineno:
            cut = self._lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            return cut.decode("utf-8", "replace")
        return _unparsed(node)

    def _open(self, node: ast.expr, differs: bool = False) -> Value:
        return Value(text=self.text(node), differs=differs)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
            elif not isinstance(child, ast.expr_context):
                self._children(child)

    def _Constant(self, node: ast.Constant) -> Value:  # noqa: N802
        return Value(True, node.value, text=repr(node.value))

    def _Lambda(self, node: ast.Lambda) -> Value:  # noqa: N802
        return Value(thing=node, text="lambda")

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:  # noqa: N802
        self.names[node.target.id] = found = self.value(node.value)
        return found

    def _Name(self, node: ast.Name) -> Value:  # noqa: N802
        name = node.id
        if name in self.names:
            found = self.names[name]
            return found if found.known or found.text else self._renamed(found, name)
        if names.RANK_NAME.fullmatch(name):
            return Value(True, self.rank, True)
        if names.MAIN_RANK_NAME.fullmatch(name):
            return Value(True, self.rank == 0, True)
        if names.SIZE_NAME.fullmatch(name):
            return Value(True, self.size, text=name)
        return Value(text=name, thing=names.known_before(name))

    @staticmethod
    def _renamed(found: Value, name: str) -> Value:
        return Value(found.known, found.value, found.differs, name, found.thing)

    def _Attribute(self, node: ast.Attribute) -> Value:  # noqa: N802
        whole = self.text(node)
        if (key := self.key(node)) in self.names:
            return self._renamed(self.names[key], whole)
        owner = self.value(node.value)
        thing = owner.thing
        if isinstance(thing, str):
            return Value(text=whole, thing=f"{thing}.{node.attr}")
        if isinstance(thing, Object) and (own := self._attribute_of(thing, node.attr)) is not None:
            return Value(text=whole, thing=own)
        if names.is_rank_attribute(node.value, node.attr):
            return Value(True, self.rank, True)
        if names.MAIN_RANK_NAME.fullmatch(node.attr) or node.attr == "is_global_zero":
            return Value(True, self.rank == 0, True)
        return Value(text=whole, differs=owner.differs)

    def key(self, node: ast.Name | ast.Attribute) -> str:
        """Return the key of `node` in `names`. Attributes of instances of the cell's classes are
        kept by class."""
        text = self.text(node)
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if root is node or not isinstance(root, ast.Name):
            return text
        thing = self.names.get(root.id, UNKNOWN).thing
        if not isinstance(thing, Object) or thing.made_of is None:
            return text
        return f"<{thing.made_of.name}>{text[len(root.id) :]}"

    @staticmethod
    def _attribute_of(owner: Object, name: str) -> Any:
        if owner is OPTIMIZER and name in ("step", "synchronize", "apply_gradients"):
            return f"optimizer.{name}"
        if owner is TAPE and name == "gradient":
            return "tape.gradient"
        if owner is LOSS:
            return "loss.backward" if name == "backward" else LOSS
        for each in owner.made_of.body if owner.made_of else ():
            if isinstance(each, FUNCTIONS) and getattr(each, "name", "") == name:
                return (owner, each)
        return "model.fit" if owner.kind == KERAS.kind and name == "fit" else None

    def _Subscript(self, node: ast.Subscript) -> Value:  # noqa: N802
        owner = self.value(node.value)
        self.value(node.slice)
        if owner.thing == "os.environ" and names.rank_variable(node.slice):
            return Value(True, str(self.rank), True)
        return Value(text=self.text(node), thing=LOSS if owner.thing is LOSS else None)

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:  # noqa: N802
        found = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return negated(found)
        if found.known and isinstance(node.op, ast.USub) and isinstance(found.value, int):
            return Value(True, -found.value, found.differs, self.text(node))
        return self._open(node, found.differs)

    def _BinOp(self, node: ast.BinOp) -> Value:  # noqa: N802
        left, right = self.value(node.left), self.value(node.right)
        if left.known and right.known:
            result = calculated(type(node.op), left, right)
            if result is not None:
                return Value(True, result, left.differs or right.differs, self.text(node))
        thing = LOSS if LOSS in (left.thing, right.thing) else None
        return Value(text=self.text(node), differs=left.differs or right.differs, thing=thing)

    def _Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:  # noqa: N802
        found = [self.value(each) for each in node.elts]
        if found and all(each.known for each in found):
            values = tuple(each.value for each in found)
            return Value(True, values, any(each.differs for each in found), self.text(node))
        return self._open(node)

    _List = _Set = _Tuple

    def _Compare(self, node: ast.Compare) -> Value:  # noqa: N802
        left = self.value(node.left)
        parts = []
        for operation, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other)
            parts.append(self._compared(node, type(operation), left, right))
            left = right
        return parts[0] if len(parts) == 1 else joined(parts, True)

    def _compared(self, node: ast.Compare, operation: type, left: Value, right: Value) -> Value:
        differs = left.differs or right.differs
        if left.known and right.known:
            result = calculated(operation, left, right)
            if result is not None:
                return Value(True, result, differs, self.text(node))
        plain = NEGATED_OPERATORS.get(operation, operation)
        if differs and self._takes_turns(node):
            return Value(
                text=self.text(node)
            )  # so that each rank meets the others, later or sooner
        if differs and not _tells_whether(operation, left, right):
            # One side is unknown: assume that it holds on the first rank, or on all but the first.
            return Value(True, (self.rank == 0) == (plain is operation), True, thing=GUESS)
        text = f"{left.text} {plain.__name__} {right.text}"
        return Value(text=text if plain is operation else opposite(text))

    def _takes_turns(self, node: ast.Compare) -> bool:
        """Return whether something is compared modulo the number of ranks, as `i % size == rank`,
        by which ranks share the items of a loop."""
        for side in (node.left, *node.comparators):
            if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod):
                by = self.value(side.right)
                if by.known and not by.differs and by.value == self.size:
                    return True
        return False

    def _BoolOp(self, node: ast.BoolOp) -> Value:  # noqa: N802
        all_of = isinstance(node.op, ast.And)
        found: list[Value] = []
        with self._unchanged():
            for each in node.values:
                found.append(self.value(each))
                last = found[-1]
                self.may_diverge |= last.differs
                if last.known and last.differs:
                    if bool(last.value) != all_of:
                        break
                    word = "and" if all_of else "or"
                    self._enter(Condition(f"{self.text(each)} {word} …", node.lineno, self.depth))
                else:
                    self.path |= {last.text if all_of else opposite(last.text)}
        return joined(found, all_of)

    def _IfExp(self, node: ast.IfExp) -> Value:  # noqa: N802
        test = self.value(node.test)
        here = Condition(f"… if {self.text(node.test)} else …", node.lineno, self.depth)
        with self._unchanged():
            if test.differs:
                self._enter(here)
            self.may_diverge |= test.differs
            if test.known and test.differs:
                found = self.value(node.body if test.value else node.orelse)
                return found._replace(differs=True) if found.known else found
            before = self.path
            self.path = before | {test.text}
            one = self.value(node.body)
            self.path = before | {opposite(test.text)}
            other = self.value(node.orelse)
        return self._open(node, test.differs or one.differs or other.differs)

    def _ListComp(self, node: Any) -> Value:  # noqa: N802
        # A comprehension's variables are local to it, and may be called `rank`.
        outside, self.names = self.names, dict(self.names)
        for each in node.generators:
            self.value(each.iter)
            self.forget(each.target)
            for test in each.ifs:
                self.value(test)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                self.value(getattr(node, part))
        self.names = outside
        return self._open(node)

    _SetComp = _GeneratorExp = _DictComp = _ListComp

    # -- where the rank is

    @property
    def depth(self) -> int:
        """Return how many calls of the cell's functions enclose this place."""
        return len(self.call_stack)

    def ended(self, how: str, line: int) -> None:
        """Note that the rank raises or exits. Raises Leaves, unless that is a check which, as a
        rule, finds nothing."""
        raise NotImplementedError

    def forget(self, target: ast.AST) -> None:
        """Make the names that `target` binds unknown from here on."""
        for each in names_in(target):
            self.names[each] = UNKNOWN

    def _enter(self, condition: Condition) -> None:
        self.conditions = (*self.conditions, condition)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore the current conditions and path at the end of the block."""
        under, path = self.conditions, self.path
        try:
            yield
        finally:
            self.conditions, self.path = under, path


def _tells_whether(operation: type, left: Value, right: Value) -> bool:
    """Return whether a comparison of the rank only tells whether there are other ranks, by a value
    that no rank has: `rank` may be -1 or None in a single process."""
    known = left if left.known else right
    if not known.known or (left.known and right.known) or known.differs:
        return False
    value = known.value
    if not isinstance(value, int):
        return value is None or isinstance(value, str)
    return value < 0 or (value == 0 and operation in (ast.GtE, ast.Lt))


@lru_cache(maxsize=256)  # every rank needs the same nodes
def _unparsed(node: ast.expr) -> str:
    return ast.unparse(node)


def names_in(target: ast.AST) -> list[str]:
    """Return the names that an assignment to `target` binds."""
    return [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
