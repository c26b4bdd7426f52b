"""The host of a whole cluster on one machine."""
