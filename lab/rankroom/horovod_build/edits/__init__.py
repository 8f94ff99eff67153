"""The changes to Horovod: small edits, each with its reason, and whole files in `added/`.

`native_edits` and `python_edits` collect them; the others have one topic each.
"""
