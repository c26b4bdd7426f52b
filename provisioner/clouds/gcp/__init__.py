"""Instances of Compute Engine, launched in bulk."""
