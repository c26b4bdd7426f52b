"""The collection of checkpoints nobody wants any more, and of deleted experiments' data."""
