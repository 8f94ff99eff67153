"""Taking over a record whose writer is gone, so as to complete it."""

from __future__ import annotations

from rankroom.errors import RecordError
from rankroom.record.model import Owner, RunInfo
from rankroom.record.owner import is_gone, this_process
from rankroom.record.store import Store, Writer


def take_over(store: Store, run_id: str, gone: Owner | None = None) -> tuple[RunInfo, Writer]:
    """Become the writer of a record that has lost its own.

    What its events tell is to be reported again: the states of the ranks, lines, the failure.
    `gone` is a writer that cannot be looked up from here, and is known to be gone all the same.
    Raises RecordError when somebody else was quicker, or the writer is not gone.
    """
    writer = Writer.again(store.paths(run_id))
    try:
        # Only while the owner changes: a process that forks would keep such a lock after its end.
        with writer.alone() as is_alone:
            run = _lost(store, run_id, gone)
            if run is None:
                raise RecordError(TAKEN.format(id=run_id))
            run.state, run.owner = "running", this_process()
            run.end = run.failure = run.hang = None
            run.lines = 0
            for rank in run.ranks:
                rank.state = "running"
            writer.mend()
            writer.update(run)
        if not is_alone and store.load(run_id).owner != run.owner:
            raise RecordError(TAKEN.format(id=run_id))  # without locks two may come this far
    except BaseException:
        writer.close()
        raise
    return run, writer


def _lost(store: Store, run_id: str, gone: Owner | None) -> RunInfo | None:
    try:
        run = store.load(run_id)
    except RecordError:
        return None
    # A record that cannot be read is in this state too, in a list. One from elsewhere is called
    # running while it was written to lately.
    known = run.owner is not None and (is_gone(run.owner) or run.owner == gone)
    return run if known and run.state in ("running", "lost") else None


TAKEN = "run {id} is written by another process, or has ended"
