"""Shared by the searchers that compare trials at rungs: rungs, rankings, brackets, options."""
