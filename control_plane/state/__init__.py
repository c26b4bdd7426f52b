"""State tables: the StateTable protocol, the local implementations, and tables with injected
faults.

A state table stores all actors and all other rows of a cluster.
"""
