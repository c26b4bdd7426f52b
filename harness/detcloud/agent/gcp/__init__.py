"""The agent on a Compute Engine instance: its identity, its metadata and notices of its end."""
