"""The agent actor: the epoch of an agent's session, and the desired allocations of the agent."""
