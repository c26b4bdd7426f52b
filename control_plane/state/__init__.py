"""The state table: the StateTable protocol, which holds all actors and other rows, its local
implementations, and tables with faults for tests and simulations.
"""
