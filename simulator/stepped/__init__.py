"""Clusters and fleets in steps: a test moves the clock, and chooses the faults."""
