"""Clusters that a seed determines: searches, users, faults, and runs of many seeds."""
