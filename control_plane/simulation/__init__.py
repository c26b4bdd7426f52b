"""Simulation of searches in virtual time: the cluster's own actors, on machines without trials."""
