"""Restored clusters: what must be done before an older copy of the state is used again."""
