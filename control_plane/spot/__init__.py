"""Policies for buying spot or on-demand machines for work with a deadline."""
