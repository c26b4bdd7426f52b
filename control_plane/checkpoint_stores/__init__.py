"""Checkpoint stores: a file per store type in `types`, and code to remove, read and sign files."""
