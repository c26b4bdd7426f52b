"""Measurements of detcloud against targets and peers; see docs/benchmarks.md."""
