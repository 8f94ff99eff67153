"""The schedulers that grant nodes: their words, their answers, and the jobs they run."""
