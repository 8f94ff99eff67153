"""What runs beside ranks on their node: it forks, watches and ends them.

Imports the standard library, psutil, and the packages rank, reporting, record and system.
"""
