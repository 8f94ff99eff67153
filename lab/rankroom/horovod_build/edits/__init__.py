"""What is changed in Horovod: small edits, each with its reason, and whole files in `added/`.

`native_edits` and `python_edits` gather them; the others are about one matter each.
"""
