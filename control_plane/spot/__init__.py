"""Policies for buying spot or on-demand machines for work that has a deadline."""
