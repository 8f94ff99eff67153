"""How the processes of a cluster ask one another: the rendezvous that ranks and clients talk to.

Imports nothing of Rankroom but its errors.
"""
