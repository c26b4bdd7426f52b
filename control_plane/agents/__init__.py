"""The server side of agents: their reports and logs, desired state, leases and identities."""
