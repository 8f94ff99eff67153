"""What a rank asks while its cell stands still: its debuggers, `input()`, and their answers.

Two debuggers share the prompt of a run: IPython's, which breakpoint() starts, and pydevd, which
JupyterLab's own debugger panel steps through.
"""
