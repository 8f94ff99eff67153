"""Connections to login hosts, by the user's own OpenSSH: its config, jumps, keys and agent hold."""
