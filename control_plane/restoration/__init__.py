"""Restoration of clusters: the steps that make an older copy of the state safe to use."""
