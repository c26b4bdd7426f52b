"""The agent's communication with the cluster: times and content of the sync calls."""
