"""Shared code of the searchers that compare trials at rungs: rungs, rankings, brackets, options."""
