"""Metrics as numbers: columns, the segments that store them, their summaries and their charts."""
