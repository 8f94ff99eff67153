"""Services of the operating system: commands, process trees, locks, addresses, exit status.

Imports nothing of Rankroom but its errors; every other package may use it.
"""
