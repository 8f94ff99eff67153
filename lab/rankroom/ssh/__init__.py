"""The line to a login host, by the user's own OpenSSH: their config, jumps, keys and agent hold."""
