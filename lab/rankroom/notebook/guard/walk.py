"""Walk through a cell's statements as one rank would, and note the collectives it comes to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankroom.notebook.guard import words
from rankroom.notebook.guard.expressions import (
    DEEPEST,
    FUNCTIONS,
    Call,
    Condition,
    Expressions,
    Leaves,
)
from rankroom.notebook.guard.values import UNKNOWN, Object, Value, opposite

_LEAVING = (ast.Break, ast.Return, ast.Raise, ast.Continue)


@dataclass(frozen=True)
class Exit:
    """Where a rank leaves a loop or a function under a condition that not every rank meets."""

    how: str
    line: int
    through: tuple[tuple[int, str], ...]
    under: Condition


class Walk(Expressions):
    """One rank's way through a cell.

    A condition that depends on the rank is decided; of any other, which all ranks decide alike,
    both ways are taken, and what lies behind is marked as depending on it (`path`).
    """

    def __init__(self, lines: list[bytes], rank: int, size: int) -> None:
        super().__init__(lines, rank, size)
        self.exits: list[Exit] = []
        self.defined: list[tuple[Any, Object | None]] = []
        self._active: set[ast.AST] = set()
        # What the path goes on depending on: to the end of the function, and of the loop.
        self._returned: frozenset[str] = frozenset()
        self._broken: frozenset[str] = frozenset()
        self._result: Value | None = None

    def through_cell(self, body: Sequence[ast.stmt]) -> list[Call]:
        """The collectives that running the cell comes to."""
        return self._from_here(lambda: self.block(body))

    def through_function(self, function: Any, owner: Object | None) -> list[Call]:
        """The collectives of one function that the cell defines and does not call itself."""
        given = [Value(thing=owner)] if owner else []
        return self._from_here(lambda: self._body(function, given, {}))

    def _from_here(self, go: Callable[[], Any]) -> list[Call]:
        self.calls, self.exits = [], []
        self.path = self._returned = frozenset()
        self.under, self.through = (), ()
        with suppress(Leaves):
            go()
        return self.calls

    def block(self, body: Sequence[ast.stmt]) -> str | None:
        """Go through statements; how the rank leaves before their end, if it surely does."""
        for statement in body:
            method = getattr(self, f"_{type(statement).__name__}", None)
            if method is None:
                self._children(statement)
            elif (how := method(statement)) is not None:
                return str(how)
        return None

    # -- ways that part

    def _If(self, node: ast.If) -> str | None:  # noqa: N802
        test = self.value(node.test)
        here = Condition(f"if {self.text(node.test)}", node.lineno, self.depth)
        return self._choose(
            test, here, lambda: self.block(node.body), lambda: self.block(node.orelse)
        )

    def _choose(
        self,
        test: Value,
        here: Condition,
        yes: Callable[[], str | None],
        no: Callable[[], str | None],
    ) -> str | None:
        under = self.under
        if test.differs:
            self._enter(here)
        try:
            if test.known and test.differs:
                return yes() if test.value else no()
            before, names = self.path, dict(self.names)
            self.path = before | {test.text}
            left_yes = _perhaps(yes)
            names, self.names = self.names, names
            self.path = before | {opposite(test.text)}
            left_no = _perhaps(no)
            self.names = _either(names, self.names)
        finally:
            self.under = under
        self.path = before
        if left_yes and left_no:
            return min(left_yes, left_no)  # of break, continue, raise, return the one that is least
        for how, rest in ((left_yes, opposite(test.text)), (left_no, test.text)):
            if how is not None:
                self.path |= {rest}
                if how != "continue":
                    self._broken |= {rest}
                if how in ("return", "raise"):
                    self._returned |= {rest}
        return None

    def _Match(self, node: ast.Match) -> str | None:  # noqa: N802
        subject = self.value(node.subject)
        left: list[str | None] = []
        for case in node.cases:
            fits = self._fits(subject, case)
            if fits is False:
                continue
            self.forget(case.pattern)
            with self._kept():
                if subject.differs:
                    text = f"match {self.text(node.subject)}"
                    self._enter(Condition(text, node.lineno, self.depth, "out of the match"))
                if not (fits and subject.differs):
                    self.path |= {f"{subject.text} case {case.pattern.lineno}"}
                left.append(self.block(case.body))
            if fits:
                break
        return left[0] if left and len(set(left)) == 1 else None

    @staticmethod
    def _fits(subject: Value, case: ast.match_case) -> bool | None:
        if case.guard is not None or not (subject.known and subject.differs):
            return None
        pattern = case.pattern
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            return True
        if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
            return bool(pattern.value.value == subject.value)
        return None

    # -- loops

    def _While(self, node: ast.While) -> str | None:  # noqa: N802
        self._forget_assigned(node)
        test = self.value(node.test)
        text = f"while {self.text(node.test)}"
        here = Condition(text, node.lineno, self.depth, "out of the loop")
        return self._loop(node, test, here)

    def _For(self, node: ast.For | ast.AsyncFor) -> str | None:  # noqa: N802
        rounds, differs = self._rounds(node.iter)
        self.value(node.iter)
        self._forget_assigned(node)
        text = f"for … in {self.text(node.iter)}"
        here = Condition(text, node.lineno, self.depth, "out of the loop")
        if not differs:
            return self._loop(node, Value(text=text), here)
        if not rounds:
            return self.block(node.orelse)
        with self._kept():
            self._enter(here)
            self.path |= {f"{rounds} rounds of line {node.lineno}"}
            return self._loop(node, Value(text=text), here)

    _AsyncFor = _For

    def _rounds(self, node: ast.expr) -> tuple[int, bool]:
        """How often `range(…)` goes round, and whether that depends on the rank."""
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range"):
            return 0, False
        ends = [self.value(each) for each in node.args]
        if not all(each.known and type(each.value) is int for each in ends):
            # `range(rank, length, size)` and an unknown length: as a rule, ranks get as many.
            return 0, False
        try:
            return len(range(*(each.value for each in ends))), any(e.differs for e in ends)
        except (TypeError, ValueError):
            return 0, False

    def _loop(self, node: Any, test: Value, here: Condition) -> str | None:
        decided = test.known and test.differs
        if decided and not test.value:
            return self.block(node.orelse)
        broken, self._broken = self._broken, frozenset()
        how = None
        with self._kept():
            if test.differs:
                self._enter(here)
            begin = self.path
            # A rank that leaves in one round is missing in the next.
            for _ in range(2 if _can_leave(node) else 1):
                how = self.block(node.body)
                if how not in (None, "continue"):
                    break
                self.path = begin | self._broken
        self._broken = broken
        self.path |= self._returned
        if how in ("return", "raise"):
            # Not surely: the loop may have nothing to go round for.
            return how if decided else None
        return None if how == "break" else self.block(node.orelse)

    def _forget_assigned(self, node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self.names[each.id] = UNKNOWN

    # -- leaving

    def left(self, how: str, line: int) -> None:
        """Note a way out that not every rank takes."""
        if self.under:
            self.exits.append(Exit(how, line, self.through, self.under[-1]))

    def _Break(self, node: ast.Break) -> str:  # noqa: N802
        self.left("break", node.lineno)
        return "break"

    def _Continue(self, node: ast.Continue) -> str:  # noqa: N802
        self.left("continue", node.lineno)
        return "continue"

    def _Return(self, node: ast.Return) -> str:  # noqa: N802
        found = self.value(node.value) if node.value else Value(True, None)
        self._result = found if self._result is None else UNKNOWN
        self.left("return", node.lineno)
        return "return"

    def _Raise(self, node: ast.Raise) -> None:  # noqa: N802
        self._children(node)
        self.left("raise", node.lineno)
        raise Leaves

    def _Try(self, node: Any) -> str | None:  # noqa: N802
        how = _perhaps(lambda: self.block(node.body))
        if how is None:
            how = self.block(node.orelse)
        names = dict(self.names)
        for each in node.handlers:
            with self._kept():
                self.path |= {f"line {each.lineno} caught"}
                _perhaps(partial(self.block, each.body))
        # What the body bound counts, not `hvd = None` where an import failed.
        self.names = names
        last = self.block(node.finalbody)
        if how == "raise" and node.handlers:
            how = None
        elif how == "raise":
            raise Leaves
        return last or how

    _TryStar = _Try

    # -- names

    def _Assign(self, node: ast.Assign) -> None:  # noqa: N802
        found = self.value(node.value)
        for target in node.targets:
            self._bind(target, found)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self._bind(node.target, self.value(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        self.value(node.value)
        self._bind(node.target, UNKNOWN)

    def _bind(self, target: ast.expr, found: Value) -> None:
        if isinstance(target, (ast.Name, ast.Attribute)):
            key = target.id if isinstance(target, ast.Name) else self.text(target)
            if self.under and found.known and not found.differs:
                # Set on these ranks only: from here on it says which ranks they are.
                found = Value(True, found.value, True)
            self.names[key] = found
        elif isinstance(target, (ast.Tuple, ast.List)):
            many = found.value if found.known and isinstance(found.value, tuple) else ()
            for place, each in enumerate(target.elts):
                alike = len(many) == len(target.elts)
                self._bind(each, Value(True, many[place], found.differs) if alike else UNKNOWN)
        else:
            self._children(target)

    def _Import(self, node: ast.Import) -> None:  # noqa: N802
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            self.names[each.asname or whole] = Value(text=whole, thing=whole)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802
        for each in node.names:
            whole = f"{node.module}.{each.name}"
            self.names[each.asname or each.name] = Value(text=whole, thing=whole)

    def _With(self, node: ast.With | ast.AsyncWith) -> str | None:  # noqa: N802
        alone = self.alone
        for each in node.items:
            self.value(each.context_expr)
            # What DDP has for computing without the others, for a while.
            self.alone |= self.text(each.context_expr).endswith(".no_sync()")
            if each.optional_vars is not None:
                self.forget(each.optional_vars)
        try:
            return self.block(node.body)
        finally:
            self.alone = alone

    _AsyncWith = _With

    # -- the cell's own functions

    def _FunctionDef(self, node: Any) -> None:  # noqa: N802
        for each in node.decorator_list:
            self.value(each)
        self.names[node.name] = Value(text=node.name, thing=node)
        if not self.through:
            self.defined.append((node, None))

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        self.names[node.name] = Value(text=node.name, thing=node)
        made = Object("instance", node)
        self.defined += [(each, made) for each in node.body if isinstance(each, FUNCTIONS)]

    def inline(self, function: Any, call: ast.Call, given: list[Value], named: Any) -> Value:
        """Go through a function of the cell where it is called."""
        self.called.add(function)
        if function in self._active or self.depth >= DEEPEST:
            return UNKNOWN
        through = self.through
        self.through = (*through, (call.lineno, self.text(call.func)))
        try:
            return self._body(function, given, named)
        finally:
            self.through = through

    def _body(self, function: Any, given: list[Value], named: Any) -> Value:
        outside, path = self.names, self.path
        returned, self._returned = self._returned, frozenset()
        result, self._result = self._result, None
        broken = self._broken
        self.names = outside | self._parameters(function.args, given, named)
        self._active.add(function)
        try:
            if isinstance(function, ast.Lambda):
                return self.value(function.body)
            self.block(function.body)
            return self._result or UNKNOWN
        finally:
            self._active.discard(function)
            kept = {key: value for key, value in self.names.items() if "." in key}
            self.names = outside | kept
            self.path, self._returned, self._result = path, returned, result
            self._broken = broken

    def _parameters(self, wanted: ast.arguments, given: list[Value], named: Any) -> Any:
        names = [each.arg for each in (*wanted.posonlyargs, *wanted.args)]
        found = dict(zip(names, given, strict=False)) | {k: v for k, v in named.items() if k}
        defaults = dict(zip(reversed(names), reversed(wanted.defaults), strict=False))
        out = {}
        for each in (*names, *(k.arg for k in wanted.kwonlyargs)):
            value = found.get(each)
            if value is None and isinstance(defaults.get(each), ast.Constant) and self.through:
                value = self.value(defaults[each])
            if value is None or (not value.known and value.thing is None):
                # By its name, then: a parameter `rank` is one.
                value = self._by_name(each) or UNKNOWN
            out[each] = value
        return out | {each.arg: UNKNOWN for each in (wanted.vararg, wanted.kwarg) if each}

    def _by_name(self, name: str) -> Value | None:
        if words.RANKISH.fullmatch(name):
            return Value(True, self.rank, True)
        if words.MAINISH.fullmatch(name) and not self.through:
            return Value(True, self.rank == 0, True)
        return None


def _either(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    """What names are after one of two ways was taken."""
    if one == other:
        return one
    out = dict(one)
    for name in {*one, *other}:
        a, b = one.get(name), other.get(name)
        if a != b:
            # An import in one of them, as in `try`-like code, still names the module.
            things = [each.thing for each in (a, b) if each is not None and each.thing is not None]
            out[name] = Value(thing=things[0]) if things else UNKNOWN
    return out


def _perhaps(go: Callable[[], str | None]) -> str | None:
    """How the rank leaves `go`, where that is one way of several."""
    try:
        return go()
    except Leaves:
        return "raise"


def _can_leave(node: ast.AST) -> bool:
    return any(isinstance(each, _LEAVING) for each in ast.walk(node))
