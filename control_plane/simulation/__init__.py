"""The simulation of searches in virtual time: the cluster's own actors, on simulated machines."""
