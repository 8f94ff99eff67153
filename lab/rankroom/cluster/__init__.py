"""Clusters of ranks: start, attach, stop, resize, restart, status, on this machine or in a job.

A cluster object is a client of the supervisor. The records that a killed supervisor left incomplete
are completed by `repair`. Imports run/, supervisor/ and the packages below them.
"""
