"""Clusters and fleets without faults of their own, whose clock a test moves in steps."""
