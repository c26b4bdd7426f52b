"""Metrics as numbers: columns, stored segments, summaries, and downsampling for charts."""
