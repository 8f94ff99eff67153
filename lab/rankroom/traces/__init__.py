"""Timelines of other programs as records, and records as timelines for other programs."""

from rankroom.traces.export import chrome_json, compressed
from rankroom.traces.importing import Import, import_files

__all__ = ["Import", "chrome_json", "compressed", "import_files"]
