"""Timelines of other programs as records."""

from rankroom.traces.importing import Import, import_files

__all__ = ["Import", "import_files"]
