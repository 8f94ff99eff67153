"""The metrics of a run: curves by name and rank, what they show in a range, and where ranks differ.

What analysis may import; it needs NumPy.
"""
