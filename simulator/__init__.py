"""The simulator: whole clusters and single searches in virtual time, with and without faults."""
