"""The agent on an instance of EC2: its identity, its metadata and notices of interruption."""
