"""A run as a cell's output and as text: for Jupyter, nbconvert, VS Code and terminals."""

from rankroom.display.bundle import MIME, bundle, running_bundle, runs_table

__all__ = ["MIME", "bundle", "running_bundle", "runs_table"]
