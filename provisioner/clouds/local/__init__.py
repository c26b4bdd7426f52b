"""The CloudProvider of the server's machine, with agent processes as instances."""
