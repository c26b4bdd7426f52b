"""Searches in virtual time: the cluster's own actors, with machines that only follow curves."""
