"""The agent actor: the epoch of an agent's session and the allocations that belong on it."""
