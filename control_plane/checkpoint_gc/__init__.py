"""The collection of checkpoints that nobody needs any more, and of deleted experiments' data."""
