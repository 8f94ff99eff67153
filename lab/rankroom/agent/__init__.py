"""What runs beside ranks on their node: forks them, watches them, ends them with their cluster.

Imports the standard library, psutil, and the rooms rank, reporting, record and system.
"""
