"""How amounts and ranks are written, the same everywhere.

Imports nothing of Rankroom but its errors.
"""
