"""What is on disk of runs and clusters: schema, types, store, tail, retention.

Imports the room system.
"""
