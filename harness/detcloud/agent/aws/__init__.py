"""The agent on an EC2 instance: identity, metadata, interruption notices and journal."""
