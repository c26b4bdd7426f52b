"""Measures detcloud against its targets and its peers; see docs/benchmarks.md."""
