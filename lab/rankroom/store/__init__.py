"""Records on disk: where they are, who writes them, how they are read, when they go."""

from rankroom.store.records import RecordPaths, Store, Writer, new_id

__all__ = ["RecordPaths", "Store", "Writer", "new_id"]
