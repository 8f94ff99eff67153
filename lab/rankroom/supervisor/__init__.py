"""The process that owns a cluster: starts controller and ranks, watches them, ends them.

Imports the rooms agent, rank, record, rpc and system.
"""
