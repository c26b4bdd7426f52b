"""Faults of a simulated cluster: rates, random source, counts, and the table with faults."""
