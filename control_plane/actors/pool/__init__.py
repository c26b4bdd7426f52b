"""The resource pool actor: its agents, the jobs that request slots, and their allocations."""
