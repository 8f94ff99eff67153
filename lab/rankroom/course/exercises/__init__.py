"""The exercises, a module a topic; each runs on every rank after the reader's cell."""
