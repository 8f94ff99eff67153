"""The verdict on an answer, in words, from the run of the reader's cell on all ranks."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Literal

from rankroom.record.model import Json, RunInfo

State = Literal["right", "wrong", "raised", "hung", "slow", "stopped"]
_MARK = {"right": "✓"}


@dataclass(frozen=True)
class Verdict:
    """The result of an exercise. `words` say what is wrong with the answer, and where."""

    exercise: str
    state: State
    words: str

    @property
    def passed(self) -> bool:
        return self.state == "right"

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{_MARK.get(self.state, '✗')} {self.exercise}: {self.words}"

    def bundle(self) -> Json:
        """Return the MIME bundle that the notebook displays."""
        colour = "var(--jp-success-color1, #2e7d32)" if self.passed else (
            "var(--jp-error-color1, #c62828)"
        )  # fmt: skip
        mark = _MARK.get(self.state, "✗")
        words = html.escape(self.words).replace("\n", "<br>")
        name = html.escape(self.exercise)
        return {
            "text/html": f'<p style="border-left:4px solid {colour};padding-left:8px">'
            f"<b>{mark} {name}</b>: {words}</p>",
            "text/plain": repr(self),
        }


def judge(name: str, run: RunInfo, hang: str, limit: float | None, stood: str = "") -> Verdict:
    """Return the verdict on a run that has ended, or that did not stop when interrupted.

    If the run was interrupted, `hang` is why it was stuck for good, else empty; `limit` is the time
    limit (seconds) that it exceeded, else None; and `stood` is where its ranks were stuck then,
    empty if none were.
    """
    if run.state == "done":
        return Verdict(name, "right", "right, on every rank")
    goes_on = STAYS if run.state == "running" else ""
    if hang:
        return Verdict(name, "hung", f"{HUNG} {hang}{goes_on}")
    failure = run.failure
    if run.state == "failed" and failure is not None:
        who = f"on rank {failure.rank}"
        if failure.ename == "Wrong":
            return Verdict(name, "wrong", f"not yet: {failure.evalue} (seen {who})")
        if failure.ename == "RankLost":
            return Verdict(name, "raised", failure.evalue)
        where = f", cell line {failure.cell_line}" if failure.cell_line else ""
        what = f"{failure.ename}: {failure.evalue}"[:500]
        return Verdict(name, "raised", f"your code raised {who}{where}: {what}")
    if limit is not None:
        where = f": {stood}" if stood else "; no rank was waiting for another"
        return Verdict(name, "slow", f"the cell did not end within {limit:g} s{where}{goes_on}")
    return Verdict(name, "stopped", f"stopped before there was a result{goes_on}")


HUNG = "the ranks wait for one another, and would do so forever:"
STAYS = "; the cell still runs: if it does not stop, `%cluster restart` ends it"
