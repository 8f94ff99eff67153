"""A cluster on a site: its agent here, its job there, and what is asked of the login node.

Imports the rooms cluster, record, rpc, run, scheduler, ssh, supervisor and system.
"""
