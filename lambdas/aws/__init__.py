"""AWS as a host: the entry points and the adapters of a cluster's functions."""
