"""Horovod for this environment's PyTorch and TensorFlow: decided on, compiled, cached, proven.

Imports nothing of a rank or a cluster. What is changed in Horovod is in `edits/`.
"""
