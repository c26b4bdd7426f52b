"""Experiment and cluster configurations: reading, checking, defaults and migration."""
