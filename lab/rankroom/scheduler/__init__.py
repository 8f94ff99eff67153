"""Clients of the schedulers that grant nodes: their commands, their output, and their jobs."""
