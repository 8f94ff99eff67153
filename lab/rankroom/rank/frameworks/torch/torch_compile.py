"""torch.compile on a rank: Rankroom's wrappers are not traced, and do not break graphs."""

from __future__ import annotations

import contextlib
from typing import Any

from rankroom.rank.import_hooks import when_imported

# Modules whose functions read the clock; in compiled code, they would be traced.
_PACKAGE = __name__.rpartition(".")[0]
_UNTRACED_MODULES = (
    "rankroom.reporting.spans",
    "rankroom.rank.waiting",
    f"{_PACKAGE}.torch_connecting",
    f"{_PACKAGE}.torch_ddp",
    f"{_PACKAGE}.torch_ddp_group",
    f"{_PACKAGE}.torch_device",
    f"{_PACKAGE}.torch_internals",
    f"{_PACKAGE}.torch_spans",
    f"{_PACKAGE}.torch_works",
)


def is_compiling() -> bool:
    """Return whether code is being compiled; replaced by torch's own function once that exists."""
    return False


def install() -> None:
    """Prepare for the user's `import torch`; nothing is imported now."""
    when_imported("torch.compiler", _know)
    when_imported("torch._dynamo.trace_rules", _leave_out)


def _know(module: Any) -> None:
    global is_compiling
    # The compiler treats torch's function as a constant, and traces only the branch it selects.
    is_compiling = getattr(module, "is_compiling", is_compiling)


def _leave_out(module: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        for name in _UNTRACED_MODULES:
            module.add(name)
