"""The agent: runs the allocations of one node and reports on them to the cluster."""
