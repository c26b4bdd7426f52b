"""The agent: runs a node's allocations and speaks for them to the cluster."""
