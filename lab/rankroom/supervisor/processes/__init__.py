"""The processes of a cluster: how its controller and its nodes' agents, with their ranks, are
started, watched, restarted and ended. Imports the packages agent, rank, record, scheduler and
system, and nothing else of the supervisor.
"""
