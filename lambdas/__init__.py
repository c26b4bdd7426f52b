"""The hosts of a cluster: entry points, adapters, and the builder that puts the parts together."""

import gc

# Imported modules are never garbage. With the default threshold of 700, the garbage collector
# scans these modules again and again, which takes a sixth of a function's start.
gc.set_threshold(100_000)
