"""Google Cloud as a host: the entry points of a cluster's functions, and their adapters."""
