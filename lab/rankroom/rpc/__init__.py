"""Requests between the processes of a cluster, and the events that they send: over ZeroMQ.

Imports nothing of Rankroom but its errors.
"""
