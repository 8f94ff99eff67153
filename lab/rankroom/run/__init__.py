"""One cell on some ranks, as its client sees it: submit, follow, explain, release, results.

Imports the rooms analysis, display, record, rank, rpc, scheduler and system.
"""
