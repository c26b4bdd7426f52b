"""The cluster on this machine: its server, and modules of the server's run as children."""
