"""The check of a cell before it runs: warnings about collectives that not every rank reaches."""

from rankroom.lint.checker import Warning, warnings

__all__ = ["Warning", "warnings"]
