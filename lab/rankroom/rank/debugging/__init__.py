"""Prompts that block a rank's cell until a user answers: those of its debuggers, and `input()`.

Two debuggers share the prompt of a run: IPython's, which breakpoint() starts, and pydevd, which
JupyterLab's own debugger panel controls.
"""
