"""Name scopes of Horovod's operations without the numbers of Keras. Added by Rankroom.

Ranks match operations by name, and the name of an operation within a layer begins with those of its
model and layer. Keras numbers the models and layers that a process creates: if one rank had created
more of them, in a cell of its own or one that failed, all ranks waited forever.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import tensorflow as tf


class Unnumbered:
    """Horovod's compiled operations; the graph numbers those of the same name, in order."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._library, name)

        @functools.wraps(operation)
        def within_scope(*args: Any, **kwargs: Any) -> Any:
            with _scope():
                return operation(*args, **kwargs)

        as_it_is = tf.autograph.experimental.do_not_convert(within_scope)
        setattr(self, name, as_it_is)
        return as_it_is


def _scope() -> contextlib.AbstractContextManager[Any]:
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    plain = re.sub("(_[0-9]+)+(?=/|$)", "", scope)
    return tf.name_scope(f"{plain}/") if plain != scope else contextlib.nullcontext()
