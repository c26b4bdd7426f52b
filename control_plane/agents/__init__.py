"""The server side of agents: reports, logs, desired states, leases and identities."""
