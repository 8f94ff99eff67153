"""The metrics of a run: curves by name and rank, what they show in a range, and where ranks differ.

May import what analysis may; needs NumPy.
"""
