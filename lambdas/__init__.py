"""The hosts of a cluster: entry points, adapters, and the builder that puts the parts together."""

import gc

# Imported modules stay: to look through them for garbage again and again, as the default of 700 has
# it, is a sixth of the time in which a function starts.
gc.set_threshold(100_000)
