"""One folder for each framework that a rank adapts to when the user's code imports it.

Nothing in here imports a framework by itself.
"""
