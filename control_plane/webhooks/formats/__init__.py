"""The formats of requests to receivers: a module for each format."""
