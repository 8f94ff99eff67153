"""What is known to fail of other people's tests and examples, and why."""

from __future__ import annotations

# Where, a pattern of tests (or an example's path), and why: for people to read.
KNOWN: tuple[tuple[str, str, str], ...] = ()
