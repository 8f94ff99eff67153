"""What the operating system is asked for: commands, process trees, addresses, how a process ended.

Imports nothing of Rankroom but its errors; every other room may use it.
"""
