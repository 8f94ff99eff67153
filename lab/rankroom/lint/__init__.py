"""A look at a cell before it runs: collectives that not every rank reaches."""

from rankroom.lint.checker import Warning, warnings

__all__ = ["Warning", "warnings"]
