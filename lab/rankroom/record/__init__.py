"""What is on disk of runs and clusters: schema, types, store, tail, retention.

Imports nothing of Rankroom but its errors and configuration.
"""
