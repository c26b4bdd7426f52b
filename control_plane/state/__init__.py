"""Where actors live: the StateTable seam and its backends."""
