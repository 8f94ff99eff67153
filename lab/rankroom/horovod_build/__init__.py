"""Build Horovod for this environment's PyTorch and TensorFlow: plan, compile, cache, verify.

Imports nothing of a rank or a cluster. The changes to Horovod are in `edits/`.
"""
