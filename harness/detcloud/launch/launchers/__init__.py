"""Launchers: one file for each form of entrypoint, and the registry that picks among them."""
