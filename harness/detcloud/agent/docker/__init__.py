"""Trials as containers of the machine's Docker engine."""
