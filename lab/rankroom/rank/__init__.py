"""What runs on a rank: standard library, ipykernel, and whatever framework the user imported.

A rank gets cells and questions over its own connection to the supervisor, and reports there what
the room reporting makes of its output.
Nothing here imports torch, TensorFlow or Horovod by itself; the adapters act when the user's own
code imports them.
"""
