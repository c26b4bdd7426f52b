"""The agent on a Compute Engine instance: identity, metadata, end notices and journal."""
