"""Requests between the processes of a cluster, and the rendezvous of its ranks.

Imports nothing of Rankroom but its errors.
"""
