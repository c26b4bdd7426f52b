"""The cluster on this machine: the server, and server modules that run in child processes."""
