"""Calls in a cell: collectives, the rank's own number, and the cell's own functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from rankroom.lint import names
from rankroom.lint.expressions import FUNCTIONS, Call, Expressions
from rankroom.lint.values import KERAS, LOSS, MODEL, OPTIMIZER, TAPE, UNKNOWN, Object, Value

_EVALUATED_BUILTINS: dict[str, Callable[..., Any]] = {
    "int": int, "bool": bool, "str": str, "abs": abs, "range": range
}  # fmt: skip
_COLLECTIVE_METHODS = (
    "optimizer.step", "optimizer.synchronize", "optimizer.apply_gradients", "tape.gradient",
    "loss.backward", "model.fit",
)  # fmt: skip
# Horovod's wrappers, and the objects they make, whose methods are collectives.
_OBJECTS_BY_WRAPPER = {"DistributedOptimizer": OPTIMIZER, "DistributedGradientTape": TAPE}


class Calls(Expressions):
    """One rank's path through the calls in expressions."""

    def inline(self, function: Any, call: ast.Call, given: list[Value], named: Any) -> Value:
        """Follow a call of a function of the cell, and return its value."""
        raise NotImplementedError

    def _Call(self, node: ast.Call) -> Value:  # noqa: N802
        callee = self.value(node.func)
        given = [self.value(each) for each in node.args]
        named = {each.arg: self.value(each.value) for each in node.keywords}
        thing = callee.thing
        if isinstance(thing, str):
            return self._library(node, thing, [*given, *named.values()])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            self._compiled(node.func.value, [*given, *named.values()])
        if isinstance(thing, FUNCTIONS):
            return self.inline(thing, node, given, named)
        if isinstance(thing, tuple):
            return self.inline(thing[1], node, [Value(thing=thing[0]), *given], named)
        if isinstance(thing, ast.ClassDef):
            return self._made(node, thing, given, named)
        if thing is MODEL or thing is LOSS or any(each.thing is LOSS for each in given):
            return Value(text=self.text(node), thing=LOSS)
        if isinstance(node.func, ast.Name) and node.func.id not in self.names:
            return self._builtin(node, node.func.id, given)
        return self._open(node)

    def _library(self, node: ast.Call, dotted: str, given: list[Value]) -> Value:
        if names.is_own_rank(dotted, node):
            return Value(True, self.rank, True)
        if names.is_size(dotted, node):
            return Value(True, self.size, text=self.text(node))
        variable = node.args[0] if node.args else None
        if dotted in ("os.environ.get", "os.getenv") and names.rank_variable(variable):
            return Value(True, str(self.rank), True)
        last = dotted.rpartition(".")[2]
        if dotted in ("sys.exit", "os._exit", "os.abort"):
            self.ended("exit", node.lineno)
        made = _OBJECTS_BY_WRAPPER.get(last)
        if dotted.startswith("horovod") and made is not None:
            is_for_all = not names.is_for_some(node, dotted)
            return Value(text=self.text(node), thing=made if is_for_all else None)
        name = dotted if dotted in _COLLECTIVE_METHODS else names.operation(dotted)
        if (self.is_unsynchronized and name == "loss.backward") or (
            self.recompiled and name == "model.fit"
        ):
            name = None
        if name is not None and not names.is_for_some(node, dotted):
            self._reached(node, name)
        written = names.written_by(node) if names.is_in_place(dotted) else None
        if isinstance(written, (ast.Name, ast.Attribute)):
            # Whatever its value was, it is the same on all ranks now.
            self.names[self.key(written)] = Value(thing=self.value(written).thing)
        if last == "DistributedDataParallel":
            # With a group of its own, it is not for all ranks.
            own = names.is_for_some(node, dotted)
            return Value(text=self.text(node), thing=None if own else MODEL)
        return Value(
            text=self.text(node), thing=LOSS if any(v.thing is LOSS for v in given) else None
        )

    def _compiled(self, model: ast.expr, given: list[Value]) -> None:
        """Note a call of `compile`: with Horovod's optimizer, `model` is a Keras model."""
        if not isinstance(model, (ast.Name, ast.Attribute)):
            return
        key = self.key(model)
        before = self.names.get(key, UNKNOWN).thing
        own = before if isinstance(before, Object) else KERAS
        if any(each.thing is OPTIMIZER for each in given):
            self.names[key] = Value(text=key, thing=Object(KERAS.kind, own.made_of))
        elif own is before and own.kind == KERAS.kind:
            self.recompiled = True  # for all models: this one may have other names elsewhere

    def _builtin(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        if name in _EVALUATED_BUILTINS and given and all(each.known for each in given):
            differs = any(each.differs for each in given)
            try:
                result = _EVALUATED_BUILTINS[name](*(each.value for each in given))
            except (ValueError, TypeError):
                return self._open(node, differs)
            return Value(True, result, differs, self.text(node))
        if not given and name in ("get_rank", "get_local_rank"):
            return Value(True, self.rank, True)
        if names.MAIN_RANK_NAME.fullmatch(name) and not given:
            return Value(True, self.rank == 0, True)
        if name in ("exit", "quit"):
            self.ended("exit", node.lineno)
        return self._open(node)

    def _made(self, node: ast.Call, made_of: ast.ClassDef, given: Any, named: Any) -> Value:
        new = Value(text=self.text(node), thing=Object("instance", made_of))
        begin = self._attribute_of(new.thing, "__init__")
        own = f"<{made_of.name}>."
        before = {key: value for key, value in self.names.items() if key.startswith(own)}
        if begin is not None:
            self.inline(begin[1], node, [new, *given], named)
        if made_of in self.called:  # one of several instances, whose attributes share their keys
            others = {key for key, value in before.items() if self.names.get(key) != value}
            self.names |= dict.fromkeys(others, UNKNOWN)
        self.called.add(made_of)
        return new

    def _reached(self, node: ast.Call, name: str) -> None:
        self.calls.append(
            Call(
                name, self.text(node.func), node.lineno, node.col_offset, self.path,
                self.call_stack, self.conditions, self.again,
            )
        )  # fmt: skip
