"""Experiment and cluster configurations: reading, checking, defaults, conversion."""
