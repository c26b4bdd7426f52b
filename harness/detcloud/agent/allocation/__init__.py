"""One allocation on this node: its state, its directory, and the reports and log of its trial."""
