"""The deletion of checkpoints that are no longer needed, and of the data of deleted experiments."""
