"""Clusters of ranks: start, attach, stop, resize, restart, status, on this machine or in a job.

Imports run/ and the rooms below it.
"""
