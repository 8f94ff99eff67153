"""What is computed from the spans of a record: timeline, collectives, profile, scaling, export.

Imports the packages record, system and text.
"""
