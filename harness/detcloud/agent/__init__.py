"""The agent, which runs the allocations of a node and reports their progress to the cluster."""
