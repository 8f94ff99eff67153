"""The exercises, one module per topic; each runs on every rank after the reader's cell."""
