"""An allocation on this node: state, directory, reports and log."""
