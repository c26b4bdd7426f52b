"""The metrics of a cluster for monitoring systems: declarations, readings and the text format."""
