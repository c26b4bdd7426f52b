"""A whole cluster in one thread, under a virtual clock and a seeded schedule of faults."""
