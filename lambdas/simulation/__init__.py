"""The simulation of a whole cluster in a single thread, with a virtual clock and seeded faults."""
