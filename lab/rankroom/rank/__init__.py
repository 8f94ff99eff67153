"""Code that runs inside a rank, on the standard library, ipykernel and what the user imported.

A rank receives cells and requests over its own connection to the supervisor, and sends back the
events that the package `reporting` makes of its output.
Nothing here imports torch, TensorFlow or Horovod by itself; the adapters act when the user's own
code imports them.
"""
