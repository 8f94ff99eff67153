"""The process that owns a cluster: its processes, from start to end, its runs and their records.

It sends cells to the ranks over their connections, takes in their events, explains stalls, releases
collectives, and is the only writer of a record. Ranks that set up a framework meet through it.
Imports the packages agent, analysis, rank, reporting, record, rpc, scheduler, system and text.
"""
