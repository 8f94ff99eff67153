"""What runs beside a rank on its node: started with it, ends it when its cluster is gone.

Imports the standard library, psutil, ipyparallel, and the rooms rank, record, rpc and system.
"""
