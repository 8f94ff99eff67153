"""Taking over a record whose writer is gone, in order to complete it."""

from __future__ import annotations

from rankroom.errors import RecordError
from rankroom.record.model import Owner, RunInfo
from rankroom.record.owner import is_gone, this_process
from rankroom.record.store import Store, Writer


def take_over(store: Store, run_id: str, gone: Owner | None = None) -> tuple[RunInfo, Writer]:
    """Make this process the writer of a record whose writer is gone; return the run and a writer.

    The states of the ranks, the line count and the failure are reset: the caller derives them from
    the events again. `gone` is an owner that cannot be looked up from here, but is known to be
    gone. Raises RecordError when another process was faster, or the writer is not gone.
    """
    writer = Writer.again(store.paths(run_id))
    try:
        # Lock only while the owner changes: a forked child would keep the lock after our end.
        with writer.alone() as is_alone:
            run = _lost(store, run_id, gone)
            if run is None:
                raise RecordError(NOT_ORPHANED.format(id=run_id))
            run.state, run.owner = "running", this_process()
            run.end = run.failure = run.hang = None
            run.lines = 0
            for rank in run.ranks:
                rank.state = "running"
            writer.mend()
            writer.update(run)
        if not is_alone and store.load(run_id).owner != run.owner:
            raise RecordError(NOT_ORPHANED.format(id=run_id))  # without locks, two may get this far
    except BaseException:
        writer.close()
        raise
    return run, writer


def _lost(store: Store, run_id: str, gone: Owner | None) -> RunInfo | None:
    try:
        run = store.load(run_id)
    except RecordError:
        return None
    # An unreadable record is listed as lost, too, but has no owner. A record of another machine
    # counts as running while it was written to recently.
    known = run.owner is not None and (is_gone(run.owner) or run.owner == gone)
    return run if known and run.state in ("running", "lost") else None


NOT_ORPHANED = "run {id} is being written by another process, or has ended"
