"""Horovod on a rank: initialised, released, set up again, and its collectives recorded."""
