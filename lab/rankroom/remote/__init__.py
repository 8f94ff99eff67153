"""A cluster on a site: its agent on this machine, its job there, and requests to the login node.

Imports the packages cluster, record, rpc, run, scheduler, ssh, supervisor and system.
"""
