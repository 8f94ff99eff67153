"""The part that runs in the notebook's kernel: the magics, and what they need of IPython."""
