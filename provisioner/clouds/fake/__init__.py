"""A cloud without machines, for tests and simulations."""
