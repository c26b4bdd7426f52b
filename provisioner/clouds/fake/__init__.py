"""A CloudProvider without machines, for tests and simulations."""
