"""The invariants that hold after each commit of a simulated cluster."""
