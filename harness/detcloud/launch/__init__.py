"""Entry points of trial processes."""
