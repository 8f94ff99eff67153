"""Horovod on a rank: initialized, released, set up again, and its collectives recorded."""
