"""Imports timelines of other programs as records."""

from rankroom.analysis.importers.importing import Import, import_files

__all__ = ["Import", "import_files"]
