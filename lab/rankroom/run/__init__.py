"""A run as its client sees it: requested, waited for, interrupted, and read from its record.

A run goes on without any of this, as the cluster's supervisor owns it. Imports the packages
analysis and record.
"""
