"""Clusters of ranks: start, attach, stop, resize, restart, status, on this machine or in a job.

A cluster here is a client of its supervisor. Records that a killed supervisor left are completed
by repair. Imports run/, supervisor/ and the rooms below them.
"""
