"""The host of a whole cluster on a single machine."""
