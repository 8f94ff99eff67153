"""Connections to login hosts through the user's own OpenSSH: its config, jumps, keys and agent."""
