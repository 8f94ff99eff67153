"""JupyterLab on a compute node: submitted, waited for, and reached from here."""
