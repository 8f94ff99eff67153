"""What a rank does when the user's code imports a framework, one folder for each of the large ones.

Nothing in here imports a framework itself.
"""
