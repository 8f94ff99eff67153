"""Walk through a cell's statements as one rank would, and note the collectives that it reaches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from rankroom.lint.expressions import Call, Condition, Leaves
from rankroom.lint.functions import Functions
from rankroom.lint.values import GUESS, KERAS, UNKNOWN, Object, Value, opposite

_LEAVING_STATEMENTS = (ast.Break, ast.Return, ast.Raise, ast.Continue)


@dataclass(frozen=True)
class Exit:
    """Where a rank leaves a loop or a function under a condition that not every rank fulfills."""

    how: str
    line: int
    call_stack: tuple[tuple[int, str], ...]
    condition: Condition


class Walk(Functions):
    """One rank's path through a cell.

    A condition that depends on the rank is decided. All ranks decide any other condition alike:
    both branches are taken, and what they reach is marked as depending on it (`path`).
    """

    def __init__(self, lines: list[bytes], rank: int, size: int) -> None:
        super().__init__(lines, rank, size)
        self.exits: list[Exit] = []

    def through_cell(self, body: Sequence[ast.stmt]) -> list[Call]:
        """Return the collectives that running the cell reaches."""
        return self._from_here(lambda: self.block(body))

    def through_function(self, function: Any, owner: Object | None) -> list[Call]:
        """Return the collectives of a function that the cell defines but does not call."""
        given = [Value(thing=owner)] if owner else []
        return self._from_here(lambda: self._body(function, given, {}))

    def _from_here(self, go: Callable[[], Any]) -> list[Call]:
        self.calls, self.exits = [], []
        self.path = self._returned = frozenset()
        self.conditions, self.call_stack = (), ()
        self.again = False
        with suppress(Leaves):
            go()
        return self.calls

    def block(self, body: Sequence[ast.stmt]) -> str | None:
        """Walk through statements. Return how the rank leaves before their end, if it certainly
        does."""
        for statement in body:
            method = getattr(self, f"_{type(statement).__name__}", None)
            if method is None:
                self._children(statement)
            elif (how := method(statement)) is not None:
                return str(how)
        return None

    # -- branches

    def _If(self, node: ast.If) -> str | None:  # noqa: N802
        test = self.value(node.test)
        text = f"if {self.text(node.test)}"
        here = Condition(text, node.lineno, self.depth, guessed=test.thing is GUESS)
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
        under = self.conditions
        if test.differs:
            self._enter(here)
        self.may_diverge |= test.differs
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
            self.conditions = under
        self.path = before
        if left_yes and left_no:
            return min(left_yes, left_no)  # the first of break, continue, raise, return
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
        self.may_diverge |= subject.differs
        left: list[str | None] = []
        all_fit = [self._fits(subject, case) for case in node.cases]
        if None in all_fit:  # which case is taken is unknown, but the same on all ranks
            subject, all_fit = UNKNOWN, [None] * len(all_fit)
        for case, fits in zip(node.cases, all_fit, strict=True):
            if fits is False:
                continue
            self.forget(case.pattern)
            with self._unchanged():
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
        self.may_diverge = True
        if not rounds:
            return self.block(node.orelse)
        with self._unchanged():
            self._enter(here)
            self.path |= {f"{rounds} rounds of line {node.lineno}"}
            return self._loop(node, Value(text=text), here)

    _AsyncFor = _For

    def _rounds(self, node: ast.expr) -> tuple[int, bool]:
        """Return the number of iterations over `range(…)`, and whether it depends on the rank."""
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range"):
            return 0, False
        ends = [self.value(each) for each in node.args]
        if not all(each.known and type(each.value) is int for each in ends):
            # As in `range(rank, length, size)` with an unknown length: as a rule, ranks get equally
            # many iterations.
            return 0, False
        try:
            return len(range(*(each.value for each in ends))), any(e.differs for e in ends)
        except (TypeError, ValueError):
            return 0, False

    def _loop(self, node: Any, test: Value, here: Condition) -> str | None:
        self.may_diverge |= test.differs
        decided = test.known and test.differs
        if decided and not test.value:
            return self.block(node.orelse)
        broken, self._broken = self._broken, frozenset()
        # A loop that all ranks iterate alike separates them no more than what encloses it.
        again, self.again = self.again, self.again or (not decided and bool(self.conditions))
        how = None
        with self._unchanged():
            if test.differs:
                self._enter(here)
            begin = self.path
            # A rank that leaves in one iteration is missing in the next.
            for _ in range(2 if _can_leave(node) else 1):
                how = self.block(node.body)
                if how not in (None, "continue"):
                    break
                self.path = begin | self._broken
        self._broken, self.again = broken, again
        self.path |= self._returned
        if how in ("return", "raise"):
            # Not certain unless decided: the loop may have no iterations.
            return how if decided else None
        return None if how == "break" else self.block(node.orelse)

    def _forget_assigned(self, node: ast.AST) -> None:
        self.names.update(dict.fromkeys(_assigned(node), UNKNOWN))

    # -- leaving

    def left(self, how: str, line: int) -> None:
        """Note an exit, if not every rank takes it."""
        if self.conditions:
            self.exits.append(Exit(how, line, self.call_stack, self.conditions[-1]))

    def _Break(self, node: ast.Break) -> str:  # noqa: N802
        self.left("break", node.lineno)
        return "break"

    def _Continue(self, node: ast.Continue) -> str:  # noqa: N802
        self.left("continue", node.lineno)
        return "continue"

    def _Return(self, node: ast.Return) -> str:  # noqa: N802
        found = self.value(node.value) if node.value else Value(True, None)
        if self._result is not None:
            found = Value(differs=found.differs or self._result.differs)
        self._result = found
        self.left("return", node.lineno)
        return "return"

    def ended(self, how: str, line: int) -> None:
        """Note that the rank raises or exits. Raises Leaves, unless that depends on more than the
        rank's number: such a check finds nothing, as a rule."""
        if self.conditions and (self.path or self.conditions[-1].guessed):
            return
        self.left(how, line)
        raise Leaves(how)

    def _Raise(self, node: ast.Raise) -> None:  # noqa: N802
        self._children(node)
        self.ended("raise", node.lineno)

    def _Try(self, node: Any) -> str | None:  # noqa: N802
        how = _perhaps(lambda: self.block(node.body))
        if how is None:
            how = self.block(node.orelse)
        names = dict(self.names)
        for each in node.handlers:
            with self._unchanged():
                self.path |= {f"line {each.lineno} caught"}
                _perhaps(partial(self.block, each.body))
        # Keep what the body bound, not `hvd = None` from the handler of a failed import.
        self.names = names
        last = self.block(node.finalbody)
        if how == "raise" and node.handlers:
            how = None
        elif how == "raise":
            raise Leaves(how)
        return last or how

    _TryStar = _Try


def _either(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    """Return what names stand for after one of two branches was taken."""
    if one == other:
        return one
    out = dict(one)
    for name in {*one, *other}:
        a, b = one.get(name), other.get(name)
        if a != b:
            # An import in one branch only, as in `try`-like code, still names the module.
            both = [each for each in (a, b) if each is not None]
            things = [each.thing for each in both if each.thing is not None]
            # A Keras model may be compiled with Horovod's optimizer in one branch only.
            is_unsure = any(isinstance(t, Object) and t.kind == KERAS.kind for t in things)
            thing = things[0] if things and not is_unsure else None
            # `rank = 0` in the branch for a single process: after it, `rank` still differs.
            out[name] = Value(thing=thing, differs=any(each.differs for each in both))
    return out


def _perhaps(go: Callable[[], str | None]) -> str | None:
    """Take `go`, one of several branches, and return how the rank leaves it, if it does."""
    try:
        return go()
    except Leaves:
        return "raise"


# Cached, as every rank's walk calls them for the same nodes.
@lru_cache(maxsize=256)
def _assigned(node: ast.AST) -> frozenset[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return frozenset(each.id for each in names if isinstance(each.ctx, ast.Store))


@lru_cache(maxsize=256)
def _can_leave(node: ast.AST) -> bool:
    return any(isinstance(each, _LEAVING_STATEMENTS) for each in ast.walk(node))
