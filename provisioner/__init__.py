"""Turns demand into instances."""
