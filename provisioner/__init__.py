"""Turns the demand of resource pools into instances, and leaks none."""
