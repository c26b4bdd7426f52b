"""The agent's conversation with the cluster: when it calls and what it sends."""
