"""Completion in %%distributed cells, with the names that exist on the ranks."""

from __future__ import annotations

from typing import Any

from IPython.core.completer import SimpleCompletion

from rankroom.cluster.base import AnyCluster

REPLY_TIMEOUT_S = 0.5  # for the rank's reply: a later completion is of no use


def complete_here(line: str, column: int) -> tuple[str, list[str]]:
    """Return what IPython completes on a rank: the text to replace, and the matches. Runs there."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    piece, matches = shell.complete(None, line, column)
    return piece, list(matches)


class RankMatcher:
    """An IPython matcher that asks rank 0 for completions, unless a run is in progress."""

    matcher_api_version = 2
    matcher_priority = 1
    matcher_identifier = "rankroom"

    def __init__(self, magics: Any) -> None:
        self._magics = magics
        # IPython reads this attribute of every matcher, as it expects functions.
        self.__qualname__ = type(self).__qualname__

    def __call__(self, context: Any) -> dict[str, Any]:
        first = context.full_text.lstrip()
        own = first.startswith("%%")  # the first line then holds the magic's options
        distributed = first.startswith("%%distributed") if own else self._magics.every_cell
        in_options = own and context.cursor_line == 0
        cluster = AnyCluster.current
        if not distributed or in_options or cluster is None or cluster.busy:
            return {"completions": [], "suppress": False}
        piece, texts = self._ask(cluster, context)
        found = [SimpleCompletion(text) for text in texts]
        return {"completions": found, "matched_fragment": piece, "suppress": False}

    def _ask(self, cluster: AnyCluster, context: Any) -> tuple[str, list[str]]:
        line = context.full_text.split("\n")[context.cursor_line]
        try:
            at = context.cursor_position
            found: tuple[str, list[str]] = cluster.apply(
                0, complete_here, line, at, patience=REPLY_TIMEOUT_S
            )
            return found
        except Exception:
            # Completion is optional: whatever fails, it must not disturb typing.
            return context.token, []
