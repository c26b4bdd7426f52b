"""The CloudProvider protocol, and a folder with an implementation for each cloud."""
