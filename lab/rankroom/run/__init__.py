"""A run as its client sees it: asked for, waited for, interrupted, and read from its record.

Nothing here is needed for a run to go on; the cluster's supervisor owns it. Imports the rooms
analysis and record.
"""
