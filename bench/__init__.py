"""Measures detcloud against its targets and its peers: `python -m bench`, see docs/benchmarks.md."""
