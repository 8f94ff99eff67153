"""How amounts and ranks are said in words, the same everywhere.

Imports nothing of Rankroom but its errors.
"""
