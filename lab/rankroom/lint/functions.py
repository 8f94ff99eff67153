"""Follow what a cell binds names to, and its own functions where they are called."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from rankroom.lint import names
from rankroom.lint.calls import Calls
from rankroom.lint.expressions import FUNCTIONS, MAX_CALL_DEPTH, Leaves
from rankroom.lint.values import UNKNOWN, Object, Value

# Methods that are not checked alone: `if rank: barrier()` in one may go with `if not rank:
# barrier()` in the other.
_PAIRED_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")


class Functions(Calls):
    """One rank's path through bindings and functions; `Walk` adds branches and loops."""

    def __init__(self, lines: list[bytes], rank: int, size: int) -> None:
        super().__init__(lines, rank, size)
        self.defined: list[tuple[Any, Object | None]] = []
        self._active: set[ast.AST] = set()
        # What the path depends on up to the end of the function, and of the loop.
        self._returned: frozenset[str] = frozenset()
        self._broken: frozenset[str] = frozenset()
        self._result: Value | None = None

    def block(self, body: Sequence[ast.stmt]) -> str | None:
        """Walk through statements. Return how the rank leaves before their end, if it certainly
        does."""
        raise NotImplementedError

    # -- names

    def _Assign(self, node: ast.Assign) -> None:  # noqa: N802
        if pairs := _one_by_one(node):
            for each, value in [(each, self.value(given)) for each, given in pairs]:
                self._bind(each, value)
            return
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
            key = self.key(target)
            if found.known and not found.differs and self._apart(target):
                # Set on some ranks only: from here on, its value depends on the rank.
                found = Value(True, found.value, True)
            self.names[key] = found
        elif isinstance(target, (ast.Tuple, ast.List)):
            many = found.value if found.known and isinstance(found.value, tuple) else ()
            for place, each in enumerate(target.elts):
                alike = len(many) == len(target.elts)
                self._bind(each, Value(True, many[place], found.differs) if alike else UNKNOWN)
        else:
            self._children(target)

    def _apart(self, target: ast.expr) -> bool:
        """Return whether only some ranks set `target`. A function's local names are set by all
        ranks that call it."""
        if isinstance(target, ast.Attribute):
            return bool(self.conditions)
        return any(
            each.depth == self.depth and not each.text.startswith("for ")
            for each in self.conditions
        )

    def _Import(self, node: ast.Import) -> None:  # noqa: N802
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            self.names[each.asname or whole] = Value(text=whole, thing=whole)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802
        for each in node.names:
            whole = f"{node.module}.{each.name}"
            self.names[each.asname or each.name] = Value(text=whole, thing=whole)

    def _With(self, node: ast.With | ast.AsyncWith) -> str | None:  # noqa: N802
        alone = self.is_unsynchronized
        for each in node.items:
            self.value(each.context_expr)
            self.is_unsynchronized |= names.goes_alone(each.context_expr)
            if each.optional_vars is not None:
                self.forget(each.optional_vars)
        try:
            return self.block(node.body)
        except Leaves as left:
            if str(left) == "raise" and any(
                names.keeps_errors(each.context_expr) for each in node.items
            ):
                return None
            raise
        finally:
            self.is_unsynchronized = alone

    _AsyncWith = _With

    # -- the cell's own functions

    def _FunctionDef(self, node: Any) -> None:  # noqa: N802
        for each in node.decorator_list:
            self.value(each)
        self.names[node.name] = Value(text=node.name, thing=node)
        if not self.call_stack:
            self.defined.append((node, None))

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        self.names[node.name] = Value(text=node.name, thing=node)
        made = Object("instance", node)
        self.defined += [
            (each, made)
            for each in node.body
            if isinstance(each, FUNCTIONS) and each.name not in _PAIRED_METHODS
        ]

    def inline(self, function: Any, call: ast.Call, given: list[Value], named: Any) -> Value:
        """Walk through a function of the cell where it is called, and return its value."""
        if function in self._active or self.depth >= MAX_CALL_DEPTH:
            return UNKNOWN
        self.called.add(function)
        through = self.call_stack
        self.call_stack = (*through, (call.lineno, self.text(call.func)))
        try:
            return self._body(function, given, named)
        finally:
            self.call_stack = through

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
        defaults: dict[str, Any] = {
            **dict(zip(reversed(names), reversed(wanted.defaults), strict=False)),
            **{k.arg: v for k, v in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True)},
        }
        out = {}
        for each in (*names, *(k.arg for k in wanted.kwonlyargs)):
            value = found.get(each)
            if value is None and isinstance(defaults.get(each), ast.Constant) and self.call_stack:
                value = self.value(defaults[each])
            if value is None or (not value.known and value.thing is None):
                # Judge by its name, then: a parameter `rank` is a rank.
                value = self._by_name(each, defaults.get(each)) or UNKNOWN
            out[each] = value
        return out | {each.arg: UNKNOWN for each in (wanted.vararg, wanted.kwarg) if each}

    def _by_name(self, name: str, default: ast.expr | None) -> Value | None:
        if names.RANK_NAME.fullmatch(name):
            if isinstance(default, ast.Constant) and type(default.value) is int and default.value:
                return None  # `rank=8` is the rank of a matrix
            return Value(True, self.rank, True)
        if names.MAIN_RANK_NAME.fullmatch(name) and not self.call_stack:
            return Value(True, self.rank == 0, True)
        return None


def _one_by_one(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Return the pairs of target and value in `a, b = c, d`; none for another assignment."""
    into, given = node.targets[0], node.value
    several = (ast.Tuple, ast.List)
    if len(node.targets) > 1 or not isinstance(into, several) or not isinstance(given, several):
        return []
    if len(into.elts) != len(given.elts) or any(
        isinstance(each, ast.Starred) for each in (*into.elts, *given.elts)
    ):
        return []
    return list(zip(into.elts, given.elts, strict=True))
