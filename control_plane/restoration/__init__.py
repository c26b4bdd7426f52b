"""Restored clusters: what has to be so before an older copy of the state is used again."""
