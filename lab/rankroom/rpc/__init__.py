"""How the processes of a cluster ask one another, and where its ranks meet.

Imports nothing of Rankroom but its errors.
"""
