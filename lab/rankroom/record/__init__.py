"""Runs and clusters as they are stored on disk: schema, types, store, tail, retention.

Imports the package system.
"""
