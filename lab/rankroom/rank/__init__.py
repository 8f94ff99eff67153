"""What runs on a rank: standard library, ipykernel, and whatever framework the user imported.

Nothing here imports torch, TensorFlow or Horovod by itself; the adapters act when the user's own
code imports them.
"""
